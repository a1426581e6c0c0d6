"""Questions about health: an answer is told from another one, and from none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.cluster.cluster import Cluster
from tests.cluster.migration.health import HealthChecks, Question, ask


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Here:
    """In place of a cluster: the clients are in this namespace."""

    def inside(self, _name: str) -> nullcontext[None]:
        return nullcontext()


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_status_or_the_reason(port: int) -> None:
    assert ask(Question("127.0.0.1", port, "/healthz", 200)) == 200
    assert ask(Question("127.0.0.1", port, "/", 200)) == 503
    assert "refused" in str(ask(Question("127.0.0.1", _closed(), "/", 200)))


def test_only_the_true_answer_counts_as_right(port: int) -> None:
    questions = [
        Question("127.0.0.1", port, "/healthz", 200),
        Question("127.0.0.1", port, "/", 503),
        Question("127.0.0.1", port, "/other", 200),
        Question("127.0.0.1", _closed(), "/", 200),
    ]
    with HealthChecks(cast("Cluster", _Here()), questions) as asking:
        wait(lambda: min(asking.right // 2, asking.wrong, asking.unanswered) >= 2, "answers")
    with pytest.raises(AssertionError) as raised:
        asking.judge()
    text = str(raised.value)
    assert text.startswith(f"{asking.wrong} wrong, {asking.unanswered} unanswered")
    assert f"port {port} /other: 503" in text
    assert "refused" in text
    assert f"port {port} /healthz" not in text


def test_nothing_is_raised_if_all_answers_are_true(port: int) -> None:
    with HealthChecks(cast("Cluster", _Here()), [Question("127.0.0.1", port, "/", 503)]) as asking:
        wait(lambda: asking.right >= 2, "answers")
    asking.judge()
    assert asking.figures == {"health checks": asking.right, "wrong": 0, "unanswered": 0}
