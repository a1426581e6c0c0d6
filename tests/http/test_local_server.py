"""The server for the commands of a node: who may ask, and what is answered."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.local_socket import address_of
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.local_server import LocalServer
from tests.http.asking import SECONDS, body, read_all


def answer(namespace: str, name: str) -> bytes | None:
    if name == "away":
        raise BpfsvcError("the API server is away")
    return f'["{namespace}", "{name}"]'.encode() if name == "web" else None


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The pin root of an agent whose server answers."""
    server = LocalServer(tmp_path, {"/service": answer}, print)
    server.start()
    yield tmp_path
    server.stop()


def ask(root: Path, query: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(address_of(root))
        client.sendall(f"GET /service?{query} HTTP/1.1\r\n\r\n".encode())
        return read_all(client)


def test_an_object_is_asked_for_by_namespace_and_name(root: Path) -> None:
    assert body(ask(root, "namespace=prod&name=web")) == b'["prod", "web"]'


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("namespace=prod&name=none", b"404", b'{"error": "there is no prod/none"}'),
        ("namespace=prod&name=away", b"502", b'{"error": "the API server is away"}'),
        ("", b"404", b'{"error": "there is no /"}'),
    ],
)
def test_a_failure_says_why(root: Path, query: str, status: bytes, text: bytes) -> None:
    answered = ask(root, query)
    assert answered.split()[1] == status
    assert body(answered) == text


def test_two_agents_of_one_machine_have_servers_of_their_own(root: Path) -> None:
    other = root / "other"
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(address_of(other))


def test_nobody_but_root_and_the_agents_user_is_answered(root: Path) -> None:
    """Another user's connection is closed before it can ask."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            os.write(writing, ask(root, "namespace=prod&name=web") or b"nothing")
        except OSError:
            os.write(writing, b"nothing")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) == b"nothing"
    os.close(reading)
    os.close(writing)


def test_it_waits_for_the_address_of_the_agent_that_is_replaced(tmp_path: Path) -> None:
    log: list[str] = []
    first = LocalServer(tmp_path, {"/service": answer}, log.append)
    first.start()
    second = LocalServer(tmp_path, {"/service": answer}, log.append, retry_seconds=0.05)
    second.start()
    first.stop()
    wait(lambda: "served" in log[-1], "the second one serves")
    assert body(ask(tmp_path, "namespace=prod&name=web")) == b'["prod", "web"]'
    second.stop()


def test_an_answer_that_waits_for_the_api_server_holds_up_no_other(tmp_path: Path) -> None:
    """Each question about a Pod waits as long as a server that hangs is waited for."""
    asked, answers = threading.Semaphore(0), threading.Event()

    def wait_for_server(_namespace: str, _name: str) -> bytes | None:
        asked.release()
        answers.wait(2 * SECONDS)
        return b"late"

    server = LocalServer(tmp_path, {"/service": answer, "/pod": wait_for_server}, print)
    server.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address_of(tmp_path))
        client.sendall(b"GET /pod?namespace=prod&name=web HTTP/1.1\r\n\r\n")
        assert asked.acquire(timeout=SECONDS)
        assert body(ask(tmp_path, "namespace=prod&name=web")) == b'["prod", "web"]'
        assert not answers.is_set()
        answers.set()
        assert body(read_all(client)) == b"late"
    server.stop()
