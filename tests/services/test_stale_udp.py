"""Which UDP clients have a backend that no longer serves what they send to."""

from __future__ import annotations

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, pack
from bpfsvc.services.entries import Frontend, Place
from bpfsvc.services.rules.stale_udp import StaleUdp

VIP, NODE, OTHER = pack("10.96.0.1"), pack("192.0.2.1"), pack("192.0.2.9")
SERVES, LEFT = (pack("10.244.0.1"), 53), (pack("10.244.0.2"), 53)
NODE_PORT = 30053


def stale(*, owned: tuple[Place, ...] = (), asked: list[bytes] | None = None) -> StaleUdp:
    """Return the rule where one endpoint serves a cluster IP, and a NodePort at one address."""

    def has_nodeports(address: bytes) -> bool:
        if asked is not None:
            asked.append(address)
        return address == NODE

    serving = frozenset({SERVES})
    return StaleUdp(
        {(VIP, 53): serving, (ANY_NODE_ADDRESS_V4, NODE_PORT): serving},
        lambda frontend: isinstance(frontend, Frontend) and frontend[:2] in owned,
        has_nodeports,
    )


def test_a_client_of_an_endpoint_that_left_is_stale() -> None:
    assert stale().is_stale((VIP, 53), LEFT)
    assert not stale().is_stale((VIP, 53), SERVES)


def test_a_client_of_another_frontend_is_not() -> None:
    assert not stale().is_stale((OTHER, 53), LEFT)
    assert not stale().is_stale((VIP, 54), LEFT)


def test_a_nodeport_is_a_frontend_where_nodeports_are_accepted() -> None:
    assert stale().is_stale((NODE, NODE_PORT), LEFT)
    assert not stale().is_stale((NODE, NODE_PORT), SERVES)
    assert not stale().is_stale((OTHER, NODE_PORT), LEFT)


def test_a_service_that_has_the_address_and_the_port_goes_before_a_nodeport() -> None:
    assert not stale(owned=((NODE, NODE_PORT),)).is_stale((NODE, NODE_PORT), LEFT)


def test_each_address_is_asked_about_once() -> None:
    asked: list[bytes] = []
    rule = stale(asked=asked)
    for address in (NODE, OTHER, NODE, OTHER):
        assert rule.is_stale((address, NODE_PORT), LEFT) == (address == NODE)
    assert asked == [NODE, OTHER]


def test_the_ports_are_those_of_all_frontends() -> None:
    assert stale().ports == {53, NODE_PORT}
