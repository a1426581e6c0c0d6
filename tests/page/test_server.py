"""The server of the page: what it answers, to whom, and when it ends."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.base.errors import KernelError, UsageError
from bpfsvc.page.answers import NodeAnswers
from bpfsvc.page.questions import NotHere, Query
from bpfsvc.page.server import ASSETS, FLEET_ASSETS, PageServer
from tests.http.asking import ask, body

CROSS = "Sec-Fetch-Site: cross-site"
ASSET_FILES = Path(__file__).parents[2] / "bpfsvc" / "page" / "assets"


def echo(query: Query) -> dict[str, object]:
    return {"query": dict(query)}


def fails(query: Query) -> dict[str, object]:
    kinds = {"usage": UsageError, "here": NotHere, "kernel": KernelError}
    raise kinds[query["kind"]]("it is wrong", "do it right")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    answers = {"/api/echo": echo, "/api/fails": fails}
    server = PageServer(("127.0.0.1", 0), answers, lambda _: None)
    server.http.start()
    yield server.http.port
    server.http.stop()


def get(port: int, path: str, *headers: str, host: str = "localhost") -> tuple[int, str, bytes]:
    """Return the status, the head and the body of an answer."""
    answer = ask(port, path, *headers, host_header=host)
    head = answer.partition(b"\r\n\r\n")[0].decode()
    return int(head.split()[1]), head, body(answer)


@pytest.mark.parametrize("path", ASSETS)
def test_every_asset_is_served_with_a_policy_that_allows_only_this_page(
    port: int, path: str
) -> None:
    status, head, content = get(port, path)
    assert status == 200
    assert content == (ASSET_FILES / ASSETS[path]).read_bytes()
    assert "Content-Security-Policy: default-src 'none'; script-src 'self'" in head
    assert "frame-ancestors 'none'" in head
    assert "X-Content-Type-Options: nosniff" in head
    assert "Access-Control" not in head


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for file in ASSET_FILES.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE), file
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text


def test_no_asset_is_left_out() -> None:
    assert {file.name for file in ASSET_FILES.iterdir()} == set(FLEET_ASSETS.values())


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1:10286", "127.1.2.3", "[::1]:8080", "LocalHost"],
)
def test_loopback_by_any_name_is_answered(port: int, host: str) -> None:
    assert get(port, "/api/echo", host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:10286", "localhost.evil.example", "10.0.0.1", "[fd00::1]"],
)
def test_another_host_is_refused(port: int, host: str) -> None:
    """A site whose name resolves to 127.0.0.1 asks by its own name (DNS rebinding)."""
    for path in ("/", "/api/echo"):
        status, _, content = get(port, path, host=host)
        assert status == 421
        assert b"query" not in content


def test_another_site_may_link_to_the_page_and_not_ask_for_its_data(port: int) -> None:
    assert get(port, "/", CROSS)[0] == 200
    assert get(port, "/api/echo", CROSS)[0] == 403
    assert get(port, "/api/echo", "Sec-Fetch-Site: same-site")[0] == 403
    assert get(port, "/api/echo", "Sec-Fetch-Site: same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_page_is_read_only(port: int, method: str) -> None:
    answer = ask(port, "/api/echo", method=method, host_header="localhost")
    assert answer.split()[1] == b"405"


@pytest.mark.parametrize(
    "path", ["/../answers.py", "/assets/page.html", "/%2e%2e/server.py", "/api"]
)
def test_nothing_else_is_served(port: int, path: str) -> None:
    assert get(port, path)[0] == 404


def test_a_query_is_decoded(port: int) -> None:
    content = get(port, "/api/echo?search=%3Cb%3E+x&first=5")[2]
    assert json.loads(content) == {"query": {"search": "<b> x", "first": "5"}}


@pytest.mark.parametrize(("kind", "status"), [("usage", 400), ("here", 404), ("kernel", 502)])
def test_an_error_is_its_line_and_its_hint(port: int, kind: str, status: int) -> None:
    got, _, content = get(port, f"/api/fails?kind={kind}")
    assert got == status
    assert json.loads(content) == {"error": "it is wrong", "hint": "do it right"}


def test_a_page_of_an_agent_ends_with_it_and_when_nobody_asks() -> None:
    reading, writing = os.pipe()
    for idle, ends in ((60.0, True), (0.1, False)):
        server = PageServer(("127.0.0.1", 0), {}, lambda _: None)
        thread = threading.Thread(target=server.serve, args=(reading, idle))
        thread.start()
        if ends:
            os.write(writing, b"x")
        thread.join(timeout=30)
        assert not thread.is_alive()
        if ends:
            os.read(reading, 1)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("/api/services", {"sort": "size"}, "'size' is no order of Services"),
        ("/api/services", {"first": "-1"}, "first=-1 is not a number"),
        ("/api/services", {"size": "201"}, "size=201 is not a number"),
        ("/api/history", {"service": "web"}, "'web' is not the name of a Service"),
        ("/api/events", {"verdict": "lost"}, "there is no verdict 'lost'"),
        ("/api/events", {"ip": "x"}, "'x' is not an address or a network"),
        ("/api/explain", {"client": "10.0.0.1"}, "the question is incomplete"),
        (
            "/api/explain",
            {"client": "10.0.0.1", "destination": "10.0.0.2:80", "from": "moon"},
            "'moon' is not an origin",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    path: str, query: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        NodeAnswers(tmp_path, None).by_path()[path](query)
