"""The HTTP server: its responses, and that no client can hold it up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bpfsvc.base.errors import UsageError
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.server import HttpServer, Request, Response
from tests.http.asking import ask, body, connect, read_all

Serve = Callable[..., HttpServer]


def hello(request: Request) -> Response:
    return Response(200, f"hello {request.headers.get('x-name', 'you')}".encode())


def broken(_: Request) -> Response:
    raise ValueError("no luck")


def large(_: Request) -> Response:
    return Response(200, [bytes(1 << 20)] * 16)


ROUTES = {"/hello": hello, "/broken": broken, "/large": large}


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture(params=[0, 2], ids=["in the listening thread", "by workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def serve(log: list[str]) -> Iterator[Serve]:
    begun: list[HttpServer] = []

    def start(address: tuple[str, int] = ("127.0.0.1", 0), **settings: object) -> HttpServer:
        begun.append(HttpServer("pages", address, ROUTES, log.append, **settings))  # type: ignore[arg-type]
        begun[-1].start()
        return begun[-1]

    yield start
    for server in begun:
        server.stop()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_page_is_returned(serve: Serve, workers: int) -> None:
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
def test_bad_requests_are_refused(
    serve: Serve, path: str, method: str, expected: int, workers: int
) -> None:
    assert status(ask(serve(workers=workers).port, path, method=method)) == expected


def test_a_page_that_fails_is_logged_and_the_next_one_works(serve: Serve, log: list[str]) -> None:
    server = serve()
    ask(server.port, "/broken")
    assert log == ["pages: /broken failed: ValueError: no luck"]
    assert status(ask(server.port, "/hello")) == 200


def test_a_silent_client_does_not_hold_up_others(serve: Serve, workers: int) -> None:
    """Far more connect than may be connected: the oldest connections are closed."""
    server = serve(workers=workers)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(connect(server.port))
            silent.sendall(b"GET /hello HTTP/1.1\r\n")
        assert status(ask(server.port, "/hello")) == 200


def test_a_slow_request_is_ended(serve: Serve, workers: int) -> None:
    server = serve(workers=workers, client_timeout=0.1)
    with connect(server.port) as client:
        client.sendall(b"GET /hello HT")
        assert read_all(client) == b""


def test_a_request_that_is_too_long_is_ended(serve: Serve) -> None:
    with connect(serve().port) as client, contextlib.suppress(ConnectionError):
        for _ in range(100):
            client.sendall(b"x" * 1024)
        assert read_all(client) == b""


def test_a_response_that_is_not_read_is_ended(serve: Serve) -> None:
    """It occupies a worker until its timeout, and another worker serves the others."""
    server = serve(workers=2, client_timeout=0.3)
    with connect(server.port) as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert status(ask(server.port, "/hello")) == 200
        with connect(server.port) as other:
            other.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert status(ask(server.port, "/hello")) == 200


def test_a_large_page_arrives_whole(serve: Serve, workers: int) -> None:
    assert len(body(ask(serve(workers=workers).port, "/large"))) == 16 << 20


def test_only_a_few_requests_wait_for_a_worker(log: list[str]) -> None:
    may_go = threading.Event()

    def slow(_: Request) -> Response:
        may_go.wait(10)
        return Response(200, b"")

    server = HttpServer("pages", ("127.0.0.1", 0), {"/slow": slow}, log.append, workers=1)
    server.start()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(40)]
        for client in clients:
            client.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        refused = read_all(clients[-1])
        may_go.set()
        assert status(refused) == 503
        assert status(read_all(clients[0])) == 200
    server.stop()


def test_an_address_in_use_is_tried_again(serve: Serve, log: list[str]) -> None:
    """One line is logged when it is in use, and one when it is served at last."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = serve(("127.0.0.1", port), retry_seconds=0.01)
        wait(lambda: bool(log), "an error")
        assert server.port == 0
    wait(lambda: server.port == port, "the address")
    assert status(ask(port, "/hello")) == 200
    address = f"127.0.0.1:{port}"
    assert log == [
        f"cannot serve pages at {address}: Address already in use; trying again every 0.01 s",
        f"pages is served at {address} now",
    ]


def test_an_address_in_use_may_be_an_error(log: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()[:2]
        server = HttpServer("pages", address, ROUTES, log.append, hard_fail=True)
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
def test_an_address_is_reached_at(serve: Serve, address: str, hosts: list[str]) -> None:
    server = serve((address, 0))
    for host in hosts:
        assert status(ask(server.port, "/hello", host=host)) == 200


def test_the_port_is_free_after_the_end(log: list[str]) -> None:
    server = HttpServer("pages", ("127.0.0.1", 0), ROUTES, log.append, workers=1)
    server.start()
    port = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass
