"""Streams of agents that cannot tell all that is asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfsvc.base.local_socket import address_of
from bpfsvc.inspect.events.agent_stream import NoStream, open_stream_with_drops
from bpfsvc.model.events import encode_event
from tests.inspect.test_events import MADE

_OK = b"HTTP/1.1 200 OK\r\n\r\n" + encode_event(MADE)


@contextmanager
def agent(pin_root: Path, answers: Mapping[bytes, bytes]) -> Iterator[None]:
    """Answer two requests, each by what its path contains."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address_of(pin_root))
        listener.listen()

        def serve() -> None:
            for _ in answers:
                client, _address = listener.accept()
                with client:
                    path = client.recv(4096).split()[1]
                    client.sendall(next(answers[part] for part in answers if part in path))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def refusal(status: str, text: str) -> bytes:
    return f'HTTP/1.1 {status}\r\n\r\n{{"error": "{text}"}}'.encode()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("400 Bad Request", "an agent of this version knows no drops"),
        (
            "503 Service Unavailable",
            "drops elsewhere cannot be told: this node lacks reasons of dropped packets"
            " (Linux 5.17)",
        ),
    ],
    ids=["an older agent", "an older kernel"],
)
def test_without_drops_elsewhere_the_other_events_are_read_and_the_reason_is_told(
    tmp_path: Path, status: str, text: str
) -> None:
    answers = {b"drops=1": refusal(status, text), b"follow=1": _OK}
    with agent(tmp_path, answers), open_stream_with_drops(tmp_path) as (lines, missing):
        assert next(lines) == encode_event(MADE)
        assert missing == text


def test_an_agent_that_tells_of_no_events_is_one_error(tmp_path: Path) -> None:
    answers = {b"drops=1": refusal("404 Not Found", ""), b"follow=1": refusal("404 Not Found", "")}
    with (
        agent(tmp_path, answers),
        pytest.raises(NoStream, match="of a version that tells of no events"),
        open_stream_with_drops(tmp_path),
    ):
        raise AssertionError("there is no stream")


def test_a_stream_for_some_time_ends_by_itself_while_the_agent_goes_on(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address_of(tmp_path))
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(_OK)
                assert client.recv(1) == b"", "until the reader has gone"

        thread = threading.Thread(target=serve)
        thread.start()
        with open_stream_with_drops(tmp_path, seconds=0.2) as (lines, missing):
            assert (list(lines), missing) == ([encode_event(MADE)], "")
        thread.join()
