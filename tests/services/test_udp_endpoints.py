"""Which endpoints stop serving UDP, and when that matters to their clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bpfsvc.base.address import endpoint_text
from bpfsvc.model import EndpointSlice
from bpfsvc.services.rules.udp_endpoints import UdpEndpoints
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import CONFIG, NODE, endpoint_slice, service

DNS = {"name": "dns", "port": 53, "protocol": "UDP"}
KEY = ("default", "web")


def update(
    serving: UdpEndpoints, *endpoints: str, port: int = 5353
) -> dict[str, Sequence[set[str]]]:
    """Update the endpoints of a Service; return those serving and those gone, of changed ports."""
    slices = [endpoint_slice(*endpoints, ports=[DNS | {"port": port}])]
    return update_slices(serving, slices)


def update_slices(
    serving: UdpEndpoints, slices: Sequence[EndpointSlice], **spec: Any
) -> dict[str, Sequence[set[str]]]:
    """Update the slices of a Service; return the serving and gone endpoints of changed ports."""
    view = evaluate(service(**{"ports": [DNS], **spec}), slices, NODE, CONFIG)
    changes = serving.update(KEY, view.summary.udp_serving)
    return {
        one.port.port_name: (
            {endpoint_text(*each) for each in one.serving},
            {endpoint_text(*each) for each in one.gone},
        )
        for one in changes
    }


def test_a_new_service_port_is_returned_because_clients_may_have_entries_of_an_earlier_agent() -> (
    None
):
    assert update(UdpEndpoints(), "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, set())}


def test_nothing_is_returned_while_no_endpoint_leaves() -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here")
    assert update(serving, "10.0.0.1 here") == {}
    assert update(serving, "10.0.0.1 here", "10.0.0.2 there") == {}


@pytest.mark.parametrize("how", ["removed", "dead", "unready"])
def test_an_endpoint_that_serves_no_more_is_gone(how: str) -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here", "10.0.0.2 there")
    rest = [] if how == "removed" else [f"10.0.0.2 there {how}"]
    assert update(serving, "10.0.0.1 here", *rest) == {
        "dns": ({"10.0.0.1:5353"}, {"10.0.0.2:5353"})
    }


def test_an_endpoint_that_drains_and_still_serves_keeps_its_clients() -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here", "10.0.0.2 there")
    assert update(serving, "10.0.0.1 here", "10.0.0.2 there draining") == {}
    assert update(serving, "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, {"10.0.0.2:5353"})}


def test_another_target_port_is_another_endpoint() -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here")
    assert update(serving, "10.0.0.1 here", port=53) == {
        "dns": ({"10.0.0.1:53"}, {"10.0.0.1:5353"})
    }


def test_without_endpoints_clients_stay_until_one_serves_again() -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here")
    assert update(serving, "10.0.0.1 here dead") == {}
    assert update(serving) == {}
    assert update(serving, "10.0.0.2 here") == {"dns": ({"10.0.0.2:5353"}, {"10.0.0.1:5353"})}


def test_the_first_endpoint_is_returned_also_when_the_service_was_seen_before_it() -> None:
    """An API server sends the two in watches of their own."""
    serving = UdpEndpoints()
    assert update(serving) == {}
    assert update(serving, "10.0.0.1 here") == {"dns": ({"10.0.0.1:5353"}, set())}
    assert update(serving, "10.0.0.1 here") == {}


def test_tcp_endpoints_are_never_returned() -> None:
    serving = UdpEndpoints()
    tcp = {"name": "dns", "port": 53, "protocol": "TCP"}
    for endpoints in (("10.0.0.1 here",), ("10.0.0.2 here",)):
        slices = [endpoint_slice(*endpoints, ports=[tcp])]
        assert update_slices(serving, slices, ports=[tcp]) == {}


def test_a_deleted_service_returns_no_endpoints() -> None:
    serving = UdpEndpoints()
    update(serving, "10.0.0.1 here")
    assert serving.update(KEY, evaluate(None, [], NODE, CONFIG).summary.udp_serving) == []
    assert update(serving, "10.0.0.2 here") == {"dns": ({"10.0.0.2:5353"}, set())}
