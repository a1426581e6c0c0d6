"""The fast path while the network changes: addresses that change hands, and other networks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from bpfsvc.devtools.lab.dial import Protocol, Reply, ask, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.fast_path import Counts, fast
from tests.lab.testbed import ONE, Testbed, objects

pytestmark = pytest.mark.slow

NETWORKS: dict[str, dict[str, Any]] = {
    "routed": {"layout": "routed"},
    "bridge": {"layout": "bridge"},
    "vxlan": {"layout": "routed", "overlay": "vxlan"},
}
ROUTED = ("routed", "vxlan")


@pytest.fixture(scope="module", params=NETWORKS)
def changing(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Pods on the fast path: with an interface each, on a bridge, and by VXLAN between nodes."""
    with fast(**NETWORKS[request.param], cni_masquerade=True) as testbed:
        yield testbed


def announce(pod: LabPod, mac: str) -> None:
    """Tell all on a pod's link which hardware address its addresses have, as CNI plugins do."""
    with pod.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind(("eth0", 0))
        for family, address in pod.addresses.items():
            place = str(address)
            if family == 4:
                frame = Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(
                    hwsrc=mac, psrc=place, pdst=place
                )
            else:
                frame = (
                    Ether(src=mac, dst="33:33:00:00:00:01")
                    / IPv6(src=place, dst="ff02::1", hlim=255)
                    / ICMPv6ND_NA(tgt=place, R=0, S=0, O=1)
                    / ICMPv6NDOptDstLLAddr(lladdr=mac)
                )
            link.send(bytes(frame))


def backend_of(
    testbed: Testbed, node: LabNode, addresses: list[str] | None = None, mac: str = ""
) -> LabPod:
    """Start a pod, which is the one endpoint of a Service from then on."""
    pod = node.add_pod(addresses=addresses or [])
    if mac:
        pod.uplink.set(address=mac)
    announce(pod, mac or pod.uplink.mac)
    pod.serve()
    testbed.cluster.apply("one", *objects(ONE[0], [pod]))
    return pod


def answer(client: LabPod, address: str, port: int, transport: Protocol) -> Reply:
    """Ask, and once more a second later at most, as TCP does by itself: the agent hears of a new
    interface when it is there, and a packet may be faster."""
    try:
        return ask(client, address, port, transport, timeout=0.15)
    except TimeoutError:
        return ask(client, address, port, transport)


def replace_pod(
    testbed: Testbed,
    family: int,
    transport: Protocol,
    of: int,
    to: int,
    *,
    same_hardware: bool = False,
) -> None:
    """Give the address of a pod of one node to a new one, and reach it there at once.

    By its own address and through the Service, from pods of both nodes. ``same_hardware``: it has
    the hardware address, too.
    """
    nodes = testbed.lab.nodes
    clients = [next(iter(node.pods.values())) for node in nodes[:2]]

    def reached(pod: LabPod) -> None:
        for client in clients:
            for to in ((pod.address(family), 8080), (ONE[0].vip(family), 80)):
                assert answer(client, *to, transport).pod == pod.name

    first = backend_of(testbed, nodes[of])
    reached(first)
    mac = first.uplink.mac if same_hardware else ""
    first.remove()
    addresses = [str(address) for address in first.addresses.values()]
    second = backend_of(testbed, nodes[to], addresses, mac)
    try:
        reached(second)
    finally:
        second.remove()


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1], ids=["on this node", "on another node"])
def test_an_address_that_another_pod_of_the_node_has_now_is_reached_there_at_once(
    changing: Testbed, family: int, transport: Protocol, node: int
) -> None:
    replace_pod(changing, family, transport, node, node)


@pytest.mark.parametrize("changing", ["bridge"], indirect=True)
@pytest.mark.parametrize("node", [0, 1], ids=["on this node", "on another node"])
def test_both_addresses_of_a_pod_lead_to_the_port_of_the_pod_that_has_them_now(
    changing: Testbed, family: int, transport: Protocol, node: int
) -> None:
    """Some CNI plugins make the hardware address of the IPv4 one."""
    replace_pod(changing, family, transport, node, node, same_hardware=True)


@pytest.mark.parametrize("changing", ROUTED, indirect=True)
@pytest.mark.parametrize(("of", "to"), [(0, 1), (1, 0)], ids=["to another node", "to this node"])
def test_an_address_that_moves_to_another_node_is_reached_there_at_once(
    changing: Testbed, family: int, transport: Protocol, of: int, to: int
) -> None:
    """(Not on bridges: their pods take all addresses of their node's range for neighbours.)"""
    replace_pod(changing, family, transport, of, to)


def test_a_connection_goes_on_while_routes_to_other_pods_come_and_go(
    changing: Testbed, family: int
) -> None:
    """What is cached of a route is thrown away with each of them."""
    near, far = changing.lab.nodes[:2]
    client, backend = next(iter(near.pods.values())), next(iter(far.pods.values()))
    counts = Counts(near, family)
    with connect(client, backend.address(family), 8080) as conversation:
        conversation.who()
        for _ in range(5):
            other = far.add_pod()
            assert conversation.echo(b"while a pod comes")
            other.remove()
            assert conversation.echo(b"while it goes")
    counts.all_fast()
