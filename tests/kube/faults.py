"""What can happen to a server, or on the way to it, while its objects change.

``answer`` refuses requests, ``hang`` answers none, ``silent`` says nothing on watches that are open
(half-open connections); the others say what they do.
"""

from __future__ import annotations

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.apiserver.handler import Request
from bpfsvc.kube.requests import VERSION
from tests.kube.following import endpoint_slice, service


def change(api: ApiServer) -> None:
    """Change, add and delete objects of both kinds, more than once."""
    for number in range(3):
        api.put(service("web-0", clusterIP=f"10.96.0.{number + 10}"))
        api.put(endpoint_slice("web-1", f"10.1.0.{number + 1}"))
    api.put(service("fresh"))
    api.put(endpoint_slice("fresh"))
    api.delete("Service", "default", "web-2")
    api.delete("EndpointSlice", "default", "web-2-abcde")


def lists(api: ApiServer) -> int:
    """Count the requests for the current state, by list or WatchList."""
    return sum(
        "sendInitialEvents" in request.query
        if "watch" in request.query
        else request.query.get("limit") != "1"
        for request in asked(api)
    )


def questions(api: ApiServer) -> list[Request]:
    """Return the requests that ask whether the server still has a version."""
    return [request for request in asked(api) if request.query.get("limit") == "1"]


def asked(api: ApiServer) -> list[Request]:
    """Return the requests except those for the version, which are made separately."""
    return [request for request in api.requests if request.path != VERSION]


def cut(api: ApiServer) -> None:
    api.cut_watches()
    change(api)


def cut_inside(api: ApiServer) -> None:
    api.cut_watches(inside=True)
    change(api)


def cut_again_and_again(api: ApiServer) -> None:
    api.faults.cut_after = 1
    change(api)


def lost_and_forgotten(api: ApiServer) -> None:
    api.faults.hang = True
    api.cut_watches()
    change(api)
    api.compact()
    api.faults.hang = False


def gone_over_http(api: ApiServer) -> None:
    api.faults.gone_at_once = True
    lost_and_forgotten(api)


def duplicated(api: ApiServer) -> None:
    api.faults.duplicates = 2
    change(api)


def late(api: ApiServer) -> None:
    api.faults.delay = 0.05
    change(api)


def away(api: ApiServer) -> None:
    api.go_away()
    change(api)
    api.come_back()


def away_and_forgotten(api: ApiServer) -> None:
    api.go_away()
    change(api)
    api.compact()
    api.come_back()


def busy(api: ApiServer) -> None:
    api.faults.answer(429, 6, retry_after=0)
    cut(api)


def in_trouble(api: ApiServer) -> None:
    for code in (500, 502, 503, 504):
        api.faults.answer(code, 3)
    cut(api)


def in_trouble_and_forgotten(api: ApiServer) -> None:
    for code in (500, 503, 410, 504):
        api.faults.answer(code, 3)
    lost_and_forgotten(api)


def unauthorized(api: ApiServer) -> None:
    api.faults.answer(401, 5)
    cut(api)


def forbidden(api: ApiServer) -> None:
    api.faults.answer(403, 5)
    cut(api)


FAULTS = [
    cut,
    cut_inside,
    cut_again_and_again,
    lost_and_forgotten,
    gone_over_http,
    duplicated,
    late,
    away,
    away_and_forgotten,
    busy,
    in_trouble,
    in_trouble_and_forgotten,
    unauthorized,
    forbidden,
]
