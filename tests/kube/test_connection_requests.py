"""Requests by a connection to an API server: none is retried, each is observed, few are opened."""

from __future__ import annotations

from contextlib import closing

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.apiserver.faults import WatchList
from bpfsvc.kube.client.connection import connect
from bpfsvc.kube.errors import Refused, Unreachable
from tests.kube.faults import asked
from tests.kube.following import following, put_cluster, service, status


def test_nothing_is_retried_without_the_caller(api: ApiServer) -> None:
    """The caller decides when to send a request again."""
    made = connect(None, api.url(), user_agent="test")
    api.faults.answer(503, 1)
    with pytest.raises(Refused):
        status(made)
    assert len(api.requests) == 1
    api.go_away()
    with pytest.raises(Unreachable, match="Connection refused"):
        status(made)


def test_requests_are_observed(api: ApiServer) -> None:
    """Method, host, code and time of each, for the metrics."""
    seen: list[tuple[str, str, str]] = []

    def observe(method: str, host: str, code: str, seconds: float) -> None:
        assert 0 < seconds < 10
        seen.append((method, host, code))

    made = connect(None, api.url(), user_agent="test", observer=observe)
    status(made)
    api.faults.answer(404)
    with pytest.raises(Refused):
        status(made)
    api.go_away()
    with pytest.raises(Unreachable):
        status(made)
    host = api.url().removeprefix("http://")
    assert seen == [("GET", host, code) for code in ("200", "404", "<error>")]


def test_connections_are_used_again_and_kept_alive(api: ApiServer) -> None:
    """An answer that was read to its end leaves its connection for the next request."""
    made = connect(None, api.url(), user_agent="test")
    for _ in range(5):
        status(made)
    assert api.connections == 1


def test_the_connection_of_a_watch_that_ended_as_planned_is_used_again(api: ApiServer) -> None:
    """Its body comes in chunks, and the last one was read."""
    put_cluster(api, services=3)
    made = connect(None, api.url(), user_agent="test")
    query = (("watch", "1"), ("timeoutSeconds", "1"), ("resourceVersion", "0"))
    for _ in range(2):
        with closing(made.get("/api/v1/services", query)) as answer:
            lines = b"".join(answer.pieces()).splitlines()
        assert len(lines) == len(api.store.all("services"))
    assert api.connections == 1


def test_long_answers_are_compressed_where_wanted(api: ApiServer) -> None:
    """Lists take gzip; what is read is the same."""
    put_cluster(api, services=1500)
    made = connect(None, api.url(), user_agent="test")
    with closing(made.get("/api/v1/services")) as answer:
        plain = b"".join(answer.pieces())
    with closing(made.get("/api/v1/services", compressed=True)) as answer:
        assert answer.header("Content-Encoding") == "gzip"
        assert b"".join(answer.pieces()) == plain


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("watch_list", ["served", "recorded"])
def test_objects_come_without_managed_fields_where_the_server_can_leave_them_out(
    api: ApiServer, is_known: bool, watch_list: WatchList
) -> None:
    """Lists and watches ask for that; a server that does not know how sends them as ever."""
    api.faults.drops_managed_fields, api.faults.watch_list = is_known, watch_list
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        api.put(service("last"))
        seen.wait_synced(api)
    for request in asked(api):
        assert request.headers["accept"] == (
            "application/json;drop=metadata.managedFields,application/json"
        )
