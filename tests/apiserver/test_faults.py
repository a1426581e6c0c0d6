"""The faults of the lab's API server, and that it works again after each of them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from tests.kube.requests import SERVICES, Stream, ask, dial, send, service, watching

RECORDINGS = Path(__file__).parent.parent / "recordings"


def test_a_stopped_server_refuses_connections_until_it_listens_again(api: ApiServer) -> None:
    """Open connections end; the address stays the same."""
    stream = Stream(api, SERVICES)
    port = api.port
    api.go_away()
    assert stream.line() == b""
    with pytest.raises(ConnectionRefusedError):
        ask(api, SERVICES)
    wait(lambda: api.connections == 0, "the end of the connections")
    api.come_back()
    assert api.port == port
    assert ask(api, SERVICES).status == 200
    stream.close()


def test_a_server_in_another_namespace_stops_and_listens_again_there() -> None:
    """Its socket was made there; the server itself never enters."""
    with closing(Namespace("api")) as there, ApiServer() as api:
        with there.entered():
            listener = socket.create_server(("127.0.0.1", 0))
        api.serve(listener)

        def status() -> int:
            with there.entered():
                return ask(api, SERVICES).status

        assert status() == 200
        with pytest.raises(ConnectionRefusedError):
            ask(api, SERVICES)
        api.go_away()
        with pytest.raises(ConnectionRefusedError):
            status()
        api.come_back()
        assert status() == 200


def test_a_server_that_hangs_takes_connections_and_does_not_answer(api: ApiServer) -> None:
    """It answers the waiting requests afterwards."""
    api.faults.hang = True
    connection = dial(api)
    connection.request("GET", SERVICES)
    assert connection.sock is not None
    connection.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        connection.sock.recv(1)
    api.faults.hang = False
    connection.sock.settimeout(5)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_silent_watch_stays_open_and_sends_missed_events_later(api: ApiServer) -> None:
    """Half-open: neither events nor bookmarks."""
    api.faults.bookmark_period = 0.01
    with watching(api, allowWatchBookmarks="true") as stream:
        wait(lambda: len(api.watches) == 1, "the watch")
        api.faults.silent = True
        api.put(service("web"))
        received: list[str] = []

        def read() -> None:
            while "ADDED" not in received:
                received.append(stream.summary()[0])

        reader = threading.Thread(target=read)
        reader.start()
        wait(lambda: api.watches[0].pending() > 2, "lines that wait")
        assert "ADDED" not in received
        api.faults.silent = False
        reader.join(5)
        assert "ADDED" in received


def test_a_watch_is_cut_in_the_middle_of_a_line(api: ApiServer) -> None:
    """Half of the line is a separate chunk, and no end of the body follows."""
    with watching(api) as stream:
        wait(lambda: len(api.watches) == 1, "the watch")
        api.put(service("whole"))
        assert stream.summary()[1] == "whole"
        api.cut_watches(inside=True)
        api.put(service("half"))
        with pytest.raises(http.client.IncompleteRead) as cut:
            stream.answer.read()
        assert cut.value.partial.startswith(b'{"type":"ADDED","object"')
        assert not cut.value.partial.endswith(b"\n")


def test_a_watch_is_cut_between_lines(api: ApiServer) -> None:
    """The connection ends without the end of the body."""
    with watching(api) as stream:
        wait(lambda: len(api.watches) == 1, "the watch")
        api.cut_watches()
        with pytest.raises(http.client.IncompleteRead) as cut:
            stream.answer.read()
        assert cut.value.partial == b""


def test_each_watch_is_cut_after_some_events(api: ApiServer) -> None:
    """These events are sent completely."""
    api.faults.cut_after = 2
    for name in ("a", "b", "c"):
        api.put(service(name))
    with watching(api) as stream, pytest.raises(http.client.IncompleteRead) as cut:
        stream.answer.read()
    assert len(cut.value.partial.splitlines()) == 2


@pytest.mark.parametrize("code", [403, 429, 500, 503, 504])
def test_the_next_requests_for_a_path_are_refused(api: ApiServer, code: int) -> None:
    """So many times, with a Status and, if set, Retry-After."""
    api.faults.answer(code, times=2, path="services", retry_after=3)
    for _ in range(2):
        assert ask(api, "/api/v1/nodes").status == 200
        answer = ask(api, SERVICES)
        assert (answer.status, answer.body["code"]) == (code, code)
        assert answer.headers["retry-after"] == "3"
        assert answer.body["details"]["retryAfterSeconds"] == 3
    assert ask(api, SERVICES).status == 200


def test_a_token_that_has_expired_is_unauthorized_as_recorded(api: ApiServer) -> None:
    """A request without a token is unauthorized, too; probes need no token."""
    api.faults.tokens = frozenset({"first"})
    bearer = {"Authorization": "Bearer first"}
    assert send(api, "GET", SERVICES, headers=bearer).status == 200
    api.faults.tokens = frozenset({"second"})
    answer = send(api, "GET", SERVICES, headers=bearer)
    recorded = json.loads((RECORDINGS / "errors.json").read_text())["wrong token"]
    assert {"status": answer.status, "body": answer.body} == recorded
    assert ask(api, SERVICES).status == 401
    assert ask(api, "/readyz").status == 200


def test_events_can_be_sent_twice_and_late(api: ApiServer) -> None:
    """Each event is sent once more, and all after a delay."""
    api.faults.duplicates, api.faults.delay = 1, 0.1
    with watching(api) as stream:
        wait(lambda: len(api.watches) == 1, "the watch")
        started = time.monotonic()
        api.put(service("web"))
        first, second = stream.summary(), stream.summary()
        assert first == second
        assert time.monotonic() - started > 0.1


def test_closing_ends_watches_and_hanging_requests() -> None:
    """No thread is left."""
    api = ApiServer()
    api.start()
    stream = Stream(api, SERVICES)
    wait(lambda: len(api.watches) == 1, "the watch")
    api.faults.hang = True
    waiting = dial(api)
    waiting.request("GET", SERVICES)
    wait(lambda: api.connections == 2, "two connections")
    api.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("api")]
    stream.close()
    waiting.close()
