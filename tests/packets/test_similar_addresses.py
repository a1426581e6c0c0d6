"""IPv6 addresses of which three of the four words are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.packets.icmp_errors import error
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers, address_of

WORDS = {
    "first": "fd45:1:2:3:4:5:6:7",
    "second": "fd44:1:3:3:4:5:6:7",
    "third": "fd44:1:2:3:5:5:6:7",
    "last": "fd44:1:2:3:4:5:6:8",
}
"""By the word that is another one."""

BASE = "fd44:1:2:3:4:5:6:7"


@pytest.fixture(params=WORDS)
def other(request: pytest.FixtureRequest) -> str:
    return WORDS[request.param]


def similar(peers: Peers, **addresses: str) -> Peers:
    """Return peers of which some have other addresses, with their ports."""
    changed: dict[str, Any] = {
        name: peers.with_port(address, int(getattr(peers, name).rpartition(":")[2]))
        for name, address in addresses.items()
    }
    return replace(peers, **changed)


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
@pytest.mark.parametrize(
    "peers", [TCP_PEERS[1], UDP_PEERS[1], SCTP_PEERS[1]], ids=["TCP", "UDP", "SCTP"]
)
def test_a_frontend_and_its_backend_may_have_similar_addresses(
    node: Node, peers: Peers, other: str, masquerade: bool
) -> None:
    """In packets, and in what an error of the backend quotes."""
    peers = similar(peers, vip=BASE, backend=other)
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=masquerade)
    out = node.forward(peers.data(client, vip))
    assert same(out, peers.data(seen, backend))
    back = node.forward(peers.data(backend, seen))
    assert same(back, peers.data(vip, client))
    ends = [address_of(text) for text in (backend, seen, vip, client)]
    arrives = error(ends[0], ends[1], peers.data(seen, backend), "port unreachable")
    wanted = error(ends[2], ends[3], peers.data(client, vip), "port unreachable")
    assert same(node.forward(arrives), wanted)


def test_a_client_and_the_address_that_masquerades_it_may_be_similar(
    node: Node, other: str
) -> None:
    peers = similar(TCP_PEERS[1], external=BASE)
    node.masquerade_address("192.168.50.11", other)
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    assert address_of(seen) == other
    back = node.forward(peers.data(backend, seen))
    assert same(back, peers.data(vip, client))
    ends = [address_of(text) for text in (backend, seen, vip, client)]
    arrives = error(ends[0], ends[1], peers.data(seen, backend))
    assert same(node.forward(arrives), error(ends[2], ends[3], peers.data(client, vip)))


def test_an_error_of_a_router_beside_the_backend_comes_from_the_router(
    node: Node, other: str
) -> None:
    """Only the backend's own errors come from the frontend."""
    peers = similar(TCP_PEERS[1], backend=BASE)
    client, vip, backend, _ = peers.connected(node)
    arrives = error(other, address_of(client), peers.data(client, backend), "host unreachable")
    wanted = error(other, address_of(client), peers.data(client, vip), "host unreachable")
    assert same(node.forward(arrives), wanted)


def test_two_clients_with_similar_addresses_and_one_port_are_apart(node: Node, other: str) -> None:
    peers = similar(TCP_PEERS[1], client=BASE)
    second = similar(peers, client=other)
    assert peers.connected(node)[3] == peers.client
    assert second.connect(node, second.client, peers.vip, peers.backend) == second.client
    for one in (peers, second):
        back = node.forward(one.data(one.backend, one.client))
        assert same(back, one.data(one.vip, one.client))


@pytest.mark.parametrize(
    "vip", ["[1::1]:80", "[0:0:1::1]:80", "[::1:0:0:1]:80", "[::2]:80", "[::1]:80"]
)
@pytest.mark.parametrize("peers", [TCP_PEERS[1], UDP_PEERS[1]], ids=str)
def test_an_address_like_that_of_the_loopback_but_for_one_word_is_served(
    node: Node, peers: Peers, vip: str
) -> None:
    peers.service(node, [peers.backend], frontends=[vip])
    wanted = peers.opening(peers.client, vip if vip == "[::1]:80" else peers.backend)
    assert same(node.ingress(peers.opening(peers.client, vip)), wanted)
