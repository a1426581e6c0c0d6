"""What the programs of the hooks do by themselves, when all others are missing.

Removing a program takes the kernel so long that it is done once for all tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import IPv6ExtHdrHopByHop
from scapy.packet import Packet

from tests.packets.extension_headers import with_headers
from tests.packets.fragment import cut
from tests.packets.icmp_errors import error
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import ip, same
from tests.packets.peers import TCP_PEERS, UDP_PEERS, address_of
from tests.packets.test_tail_calls import NEEDS, index_of

TCP4, TCP6 = TCP_PEERS
UDP4 = UDP_PEERS[0]

pytestmark = pytest.mark.usefixtures("lost")


@pytest.fixture(scope="module")
def lost(loaded: Node) -> Iterator[None]:
    """All programs but those of the hooks are missing."""
    table = loaded.pinned.map("steps")
    steps = {index_of(loaded, name): loaded.pinned.program(name) for name in NEEDS}
    for index in steps:
        assert table.delete(index)
    yield
    for index, program in steps.items():
        table.update(index, program.to_bytes(4, sys.byteorder))


@pytest.fixture
def stepless(node: Node) -> Node:
    """A node with a Service at the VIP and a NodePort; its programs have lost all others."""
    TCP4.service(node, [TCP4.backend], frontends=[TCP4.vip], guarded=True)
    TCP4.service(node, [TCP4.backend], "at-nodes", frontends=[], node_port=30080)
    UDP4.service(node, [UDP4.backend], "dns", frontends=[UDP4.other_vip])
    TCP6.service(node, [TCP6.backend], "six", frontends=[TCP6.vip], guarded=True)
    return node


def unserved() -> dict[str, tuple[str, Packet]]:
    """Return packets that are for no Service, each with its hook."""
    whole = UDP4.data(UDP4.client, UDP4.backend, bytes(3000))
    pieces = cut(whole)
    packets = {
        "connection to a backend": TCP4.opening(TCP4.client, TCP4.backend),
        "connection to a backend, IPv6": TCP6.opening(TCP6.client, TCP6.backend),
        "connection to the node": TCP4.opening(TCP4.external, TCP4.on_node(22)),
        "datagram to a backend": UDP4.opening(UDP4.client, UDP4.backend),
        "first fragment": pieces[0],
        "last fragment": pieces[-1],
        "fragment to the node": cut(UDP4.data(UDP4.client, UDP4.on_node(53), bytes(3000)))[0],
        "extension header": with_headers(
            TCP6.data(TCP6.client, TCP6.backend), IPv6ExtHdrHopByHop()
        ),
        "ping of the node": ip(address_of(TCP4.external), TCP4.node_address) / ICMP(),
        "error to a pod": error(TCP4.router, address_of(TCP4.client), whole),
        "error to the node": error(TCP4.router, TCP4.node_address, whole),
    }
    ways = {f"{name}, at ingress": ("ingress", packet) for name, packet in packets.items()}
    leaving = ("fragment", "extension", "error")
    return ways | {
        f"{name}, at egress": ("egress", packet)
        for name, packet in packets.items()
        if any(word in name for word in leaving)
    }


@pytest.mark.parametrize("case", unserved())
def test_without_any_step_what_is_for_no_service_passes_as_it_is(stepless: Node, case: str) -> None:
    hook, packet = unserved()[case]
    verdict, after = stepless.run(hook, packet)
    assert verdict == UNSPEC
    assert same(after, packet)
    assert stepless.counter("dropped__step_missing") == 0


SERVED = {
    "cluster IP": TCP4.opening(TCP4.client, TCP4.vip),
    "cluster IP, IPv6": TCP6.opening(TCP6.client, TCP6.vip),
    "another port of a cluster IP": TCP4.opening(TCP4.client, TCP4.with_port(TCP4.vip, 81)),
    "NodePort": TCP4.opening(TCP4.external, TCP4.on_node(30080)),
    "fragment to a VIP": cut(UDP4.data(UDP4.client, UDP4.other_vip, bytes(3000)))[-1],
    "ping of a cluster IP": ip(address_of(TCP4.client), address_of(TCP4.vip)) / ICMP(),
}


@pytest.mark.parametrize("case", SERVED)
def test_without_any_step_what_is_for_a_service_is_dropped_and_counted(
    stepless: Node, case: str
) -> None:
    assert stepless.drops("ingress", SERVED[case])
    assert stepless.counter("dropped__step_missing") == 1


def test_without_any_step_what_is_for_the_network_of_services_is_dropped_and_counted(
    stepless: Node,
) -> None:
    """No Service has the address yet, but only Services have any there."""
    packet = TCP4.opening(TCP4.client, "10.97.0.1:80")
    assert stepless.run("ingress", packet)[0] == UNSPEC
    stepless.service_networks("10.97.0.0/16")
    assert stepless.drops("ingress", packet)
    assert stepless.counter("dropped__step_missing") == 1
    stepless.service_networks()
