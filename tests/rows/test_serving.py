"""Who ceases to serve UDP, and when that matters to the clients that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bpfsvc.address import endpoint_text
from bpfsvc.model import EndpointSlice
from bpfsvc.serving import Serving
from tests.rows.objects import endpoint_slice, service

DNS = {"name": "dns", "port": 53, "protocol": "UDP"}
KEY = ("default", "web")


def look(serving: Serving, *endpoints: str, port: int = 5353) -> dict[str, Sequence[set[str]]]:
    """Look at the endpoints of a Service; give who serves and who is gone, of what changed."""
    slices = [endpoint_slice(*endpoints, ports=[DNS | {"port": port}])]
    return told(serving, slices)


def told(
    serving: Serving, slices: Sequence[EndpointSlice], **spec: Any
) -> dict[str, Sequence[set[str]]]:
    """The same for slices and a Service that are given."""
    changes = serving.changes(KEY, service(**{"ports": [DNS], **spec}), slices)
    return {
        one.port.port_name: (
            {endpoint_text(*each) for each in one.serving},
            {endpoint_text(*each) for each in one.gone},
        )
        for one in changes
    }


def test_a_service_port_seen_first_is_told_for_a_former_agent_may_have_sent_anywhere() -> None:
    assert look(Serving(), "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, set())}


def test_nothing_is_told_while_nobody_leaves() -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here")
    assert look(serving, "10.0.0.1 here") == {}
    assert look(serving, "10.0.0.1 here", "10.0.0.2 there") == {}


@pytest.mark.parametrize("how", ["removed", "dead", "unready"])
def test_who_serves_no_more_is_gone(how: str) -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here", "10.0.0.2 there")
    rest = [] if how == "removed" else [f"10.0.0.2 there {how}"]
    assert look(serving, "10.0.0.1 here", *rest) == {"dns": ({"10.0.0.1:5353"}, {"10.0.0.2:5353"})}


def test_who_drains_and_still_serves_keeps_its_clients_though_others_are_ready() -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here", "10.0.0.2 there")
    assert look(serving, "10.0.0.1 here", "10.0.0.2 there draining") == {}
    assert look(serving, "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, {"10.0.0.2:5353"})}


def test_another_target_port_is_another_place() -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here")
    assert look(serving, "10.0.0.1 here", port=53) == {"dns": ({"10.0.0.1:53"}, {"10.0.0.1:5353"})}


def test_with_nobody_left_clients_stay_until_somebody_serves_again() -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here")
    assert look(serving, "10.0.0.1 here dead") == {}
    assert look(serving) == {}
    assert look(serving, "10.0.0.2 here") == {"dns": ({"10.0.0.2:5353"}, {"10.0.0.1:5353"})}


def test_who_serves_first_is_told_also_when_the_service_was_seen_before_its_endpoints() -> None:
    """An API server tells of the two on ways of their own."""
    serving = Serving()
    assert look(serving) == {}
    assert look(serving, "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, set())}
    assert look(serving, "10.0.0.1 here") == {}


def test_tcp_is_left_alone() -> None:
    serving = Serving()
    tcp = {"name": "dns", "port": 53, "protocol": "TCP"}
    for endpoints in (("10.0.0.1 here",), ("10.0.0.2 here",)):
        slices = [endpoint_slice(*endpoints, ports=[tcp])]
        assert told(serving, slices, ports=[tcp]) == {}


def test_a_service_that_is_gone_leaves_its_clients_alone() -> None:
    serving = Serving()
    look(serving, "10.0.0.1 here")
    assert serving.changes(KEY, None, []) == []
    assert look(serving, "10.0.0.2 here") == {"dns": ({"10.0.0.2:5353"}, set())}
