"""Requests of any bytes: each gets an answer, and the server goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpfsvc.http.server import HttpServer, Request, Response
from bpfsvc.page.questions import Query
from bpfsvc.page.server import PageServer
from tests.http.asking import ask, connect, read_all

PATHS = ["/hello", "/api/echo", "/", "//", "/%00", "/hello?a=%zz&=&a", "*", "http://x/hello"]

tokens = st.one_of(
    st.sampled_from([b"GET", b"HEAD", b"POST", b"HTTP/1.1", b"HTTP/", b" ", b"\r\n", b"\n", b":"]),
    st.sampled_from([path.encode() for path in PATHS]),
    st.sampled_from([b"Host: localhost\r\n", b"Host: [::1\r\n", b"host:\xff\r\n", b"Host: [\r\n"]),
    st.sampled_from([b"Sec-Fetch-Site: cross-site\r\n", b"Accept-Encoding: gzip;q=\r\n"]),
    st.binary(max_size=20),
)
some_bytes = st.lists(tokens, max_size=12).map(b"".join)
headers = st.lists(tokens, max_size=6).map(b"".join)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return what begins like a request, or any bytes."""
    if draw(st.booleans()):
        return draw(some_bytes)
    method, path = draw(st.sampled_from([b"GET", b"HEAD"])), draw(st.sampled_from(PATHS))
    return method + b" " + path.encode() + b" HTTP/1.1\r\n" + draw(headers)


def hello(request: Request) -> Response:
    return Response(200, f"hello {request.query}".encode())


def echo(query: Query) -> dict[str, object]:
    return {"query": dict(query)}


LOG: list[str] = []


@pytest.fixture(scope="module", params=["in the listening thread", "by workers", "of the page"])
def server(request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    if request.param == "of the page":
        made = PageServer(("127.0.0.1", 0), {"/api/echo": echo}, LOG.append).http
    else:
        workers = 2 if request.param == "by workers" else 0
        made = HttpServer("x", ("127.0.0.1", 0), {"/hello": hello}, LOG.append, workers=workers)
    made.start()
    yield made
    made.stop()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests())
def test_any_request_is_answered_and_the_server_goes_on(server: HttpServer, sent: bytes) -> None:
    with connect(server.port) as client:
        client.sendall(sent + b"\r\n\r\n")
        answer = read_all(client)
    assert re.match(rb"HTTP/1\.1 (200|400|403|404|405|421) ", answer), answer
    assert LOG == []
    path = "/hello" if b"hello" in ask(server.port, "/hello") else "/api/echo"
    assert b" 200 OK" in ask(server.port, path, host_header="localhost").splitlines()[0]
