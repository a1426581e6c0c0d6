"""The HTTP server under both servers: what it answers, and what nobody can do to it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bpfsvc.errors import UsageError
from bpfsvc.lab.patience import wait
from bpfsvc.pages import Page, Pages, Request
from tests.rows.asking import ask, body, connect, hear

Serve = Callable[..., Pages]


def hello(request: Request) -> Page:
    return Page(200, f"hello {request.headers.get('x-name', 'you')}".encode())


def broken(_: Request) -> Page:
    raise ValueError("no luck")


def large(_: Request) -> Page:
    return Page(200, [bytes(1 << 20)] * 16)


ROUTES = {"/hello": hello, "/broken": broken, "/large": large}


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture(params=[0, 2], ids=["in the thread that listens", "by workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def serve(log: list[str]) -> Iterator[Serve]:
    begun: list[Pages] = []

    def start(address: tuple[str, int] = ("127.0.0.1", 0), **settings: object) -> Pages:
        begun.append(Pages("pages", address, ROUTES, log.append, **settings))  # type: ignore[arg-type]
        begun[-1].start()
        return begun[-1]

    yield start
    for one in begun:
        one.stop()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_page_is_given(serve: Serve, workers: int) -> None:
    answer = ask(serve(workers=workers).port, "/hello?verbose=1", "X-Name: Ada")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 9\r\n" in answer
    assert body(answer) == b"hello Ada"


def test_head_is_the_same_without_the_body(serve: Serve, workers: int) -> None:
    answer = ask(serve(workers=workers).port, "/hello", method="HEAD")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 9\r\n" in answer
    assert body(answer) == b""


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        pytest.param("/", "GET", 404, id="no such page"),
        pytest.param("/hello/", "GET", 404, id="a path that only begins like one"),
        pytest.param("/hello", "POST", 405, id="a method that changes things"),
        pytest.param("hello", "GET", 400, id="no path at all"),
        pytest.param("/hello there", "GET", 400, id="too many words"),
        pytest.param("/broken", "GET", 500, id="a page that cannot be made"),
    ],
)
def test_what_is_not_there_is_refused(
    serve: Serve, path: str, method: str, expected: int, workers: int
) -> None:
    assert status(ask(serve(workers=workers).port, path, method=method)) == expected


def test_a_page_that_fails_is_logged_and_the_next_one_works(serve: Serve, log: list[str]) -> None:
    server = serve()
    ask(server.port, "/broken")
    assert log == ["pages: /broken failed: ValueError: no luck"]
    assert status(ask(server.port, "/hello")) == 200


def test_who_says_nothing_holds_nobody_up(serve: Serve, workers: int) -> None:
    """Far more of them than there may be conversations: the oldest make room."""
    server = serve(workers=workers)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(connect(server.port))
            silent.sendall(b"GET /hello HTTP/1.1\r\n")
        assert status(ask(server.port, "/hello")) == 200


def test_who_is_too_slow_is_left(serve: Serve, workers: int) -> None:
    server = serve(workers=workers, patience=0.1)
    with connect(server.port) as peer:
        peer.sendall(b"GET /hello HT")
        assert hear(peer) == b""


def test_who_talks_too_much_is_left(serve: Serve) -> None:
    with connect(serve().port) as peer, contextlib.suppress(ConnectionError):
        for _ in range(100):
            peer.sendall(b"x" * 1024)
        assert hear(peer) == b""


def test_who_does_not_take_the_answer_is_left(serve: Serve) -> None:
    """It holds a worker for as long as it may, and another worker serves the rest."""
    server = serve(workers=2, patience=0.3)
    with connect(server.port) as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert status(ask(server.port, "/hello")) == 200
        with connect(server.port) as other:
            other.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert status(ask(server.port, "/hello")) == 200


def test_a_large_page_arrives_whole(serve: Serve, workers: int) -> None:
    assert len(body(ask(serve(workers=workers).port, "/large"))) == 16 << 20


def test_more_than_a_few_do_not_queue_up(log: list[str]) -> None:
    may_go = threading.Event()

    def slow(_: Request) -> Page:
        may_go.wait(10)
        return Page(200, b"")

    server = Pages("pages", ("127.0.0.1", 0), {"/slow": slow}, log.append, workers=1)
    server.start()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(server.port)) for _ in range(40)]
        for peer in peers:
            peer.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        refused = hear(peers[-1])
        may_go.set()
        assert status(refused) == 503
        assert status(hear(peers[0])) == 200
    server.stop()


def test_an_occupied_address_is_tried_again(serve: Serve, log: list[str]) -> None:
    """One line says that it is, and one that it was had at last."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = serve(("127.0.0.1", port), retry_seconds=0.01)
        wait(lambda: bool(log), "a complaint")
        assert server.port == 0
    wait(lambda: server.port == port, "the address")
    assert status(ask(port, "/hello")) == 200
    place = f"127.0.0.1:{port}"
    assert log == [
        f"cannot serve pages at {place}: Address already in use; trying again every 0.01 s",
        f"pages is served at {place} now",
    ]


def test_an_occupied_address_may_be_an_error(log: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()[:2]
        server = Pages("pages", address, ROUTES, log.append, hard_fail=True)
        with pytest.raises(UsageError, match=r"cannot serve pages at 127\.0\.0\.1:"):
            server.start()
        server.stop()


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        pytest.param("::1", ["::1"], id="an IPv6 address"),
        pytest.param("0.0.0.0", ["127.0.0.1", "::1"], id="the IPv4 wildcard, as Go takes it"),
        pytest.param("::", ["127.0.0.1", "::1"], id="the IPv6 wildcard"),
    ],
)
def test_where_it_can_be_reached_at(serve: Serve, address: str, hosts: list[str]) -> None:
    server = serve((address, 0))
    for host in hosts:
        assert status(ask(server.port, "/hello", host=host)) == 200


def test_the_port_is_free_after_the_end(log: list[str]) -> None:
    server = Pages("pages", ("127.0.0.1", 0), ROUTES, log.append, workers=1)
    server.start()
    port = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass
