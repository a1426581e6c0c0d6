"""Which clients are pods of this node: by the interface of their packets, or by address."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.base.address import pack_network
from bpfsvc.services.entries import CLIENTS, Policies, Policy
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import TCP_PEERS, Peers

BY_INTERFACE = {"detect_interfaces": 1, "detect_pods_v4": 0, "detect_pods_v6": 0}
BY_NOTHING = {"detect_pods_v4": 0, "detect_pods_v6": 0}


@pytest.fixture
def clients(peers: Peers) -> dict[str, str]:
    """Return clients by their class, according to the pod ranges of the tests."""
    return {"pod": peers.client, "node": peers.on_node(40000), "other": peers.external}


@pytest.fixture
def web(node: Node, peers: Peers) -> Node:
    """A node with a Service; its backend shows the class of the client: see :func:`class_of`."""
    backends = [peers.with_port(peers.backend, 9000 + number) for number in range(3)]
    pod, own, other = (Policy(number, 1, False, False) for number in range(3))
    peers.service(node, backends, frontends=[peers.vip], policies=Policies(pod, own, other))
    return node


def class_of(node: Node, peers: Peers, client: str) -> str:
    """Return the class that the programs find for a client."""
    out = node.ingress(peers.opening(client, peers.vip))
    return CLIENTS[out.payload.dport - 9000]


def interface(node: Node, *, pods: bool) -> None:
    node.masquerade_address("192.168.50.11", "fd50::11", pods=pods)


def test_a_client_at_a_marked_interface_is_a_pod(
    web: Node, peers: Peers, clients: dict[str, str]
) -> None:
    web.settings(**BY_INTERFACE)
    interface(web, pods=True)
    assert {class_of(web, peers, client) for client in clients.values()} == {"pod"}


def test_a_client_at_another_interface_is_no_pod(
    web: Node, peers: Peers, clients: dict[str, str]
) -> None:
    """Even with the address of a pod: it may be a pod of another node."""
    web.settings(**BY_INTERFACE)
    interface(web, pods=False)
    seen = {name: class_of(web, peers, client) for name, client in clients.items()}
    assert seen == {"pod": "other", "node": "node", "other": "other"}


def test_a_client_at_an_unknown_interface_is_no_pod(
    web: Node, peers: Peers, clients: dict[str, str]
) -> None:
    web.settings(**BY_INTERFACE)
    web.pinned.map("interfaces").delete(struct.pack("=I", web.interface))
    seen = {name: class_of(web, peers, client) for name, client in clients.items()}
    assert seen == {"pod": "other", "node": "node", "other": "other"}


@pytest.mark.parametrize("pods", [False, True], ids=["unmarked", "marked"])
def test_with_detection_by_address_the_interface_does_not_matter(
    web: Node, peers: Peers, clients: dict[str, str], pods: bool
) -> None:
    interface(web, pods=pods)
    assert all(class_of(web, peers, client) == name for name, client in clients.items())


def test_without_a_local_detector_no_client_is_a_pod(
    web: Node, peers: Peers, clients: dict[str, str]
) -> None:
    web.settings(**BY_NOTHING)
    interface(web, pods=True)
    seen = {name: class_of(web, peers, client) for name, client in clients.items()}
    assert seen == {"pod": "other", "node": "node", "other": "other"}


def test_a_detector_of_one_family_detects_nothing_in_the_other_family(
    web: Node, peers: Peers
) -> None:
    for family in (4, 6):
        web.settings(**{f"detect_pods_v{10 - family}": 0})
        client = peers.with_port(peers.client, 41000 + family)
        assert class_of(web, peers, client) == ("pod" if family == peers.family else "other")


def test_a_pod_range_has_a_first_and_a_last_address(web: Node, peers: Peers) -> None:
    inside = {4: ("10.244.0.0", "10.244.255.255"), 6: ("fd44::", "fd44:0:0:ffff::1")}[peers.family]
    outside = {4: ("10.243.255.255", "10.245.0.0"), 6: ("fd43::1", "fd44:0:1::")}[peers.family]
    for address in inside:
        assert class_of(web, peers, peers.with_port(address, 40000)) == "pod"
    for address in outside:
        assert class_of(web, peers, peers.with_port(address, 40000)) == "other"


def test_a_range_of_pods_may_differ_from_other_addresses_in_its_last_bits_alone(
    node: Node,
) -> None:
    """So IPv4 has it always; of IPv6 the last word of the address tells then."""
    peers, masqueraded = TCP_PEERS[1], Policy(0, 1, masquerade=True, reject=False)
    policies = Policies(masqueraded._replace(masquerade=False), masqueraded, masqueraded)
    peers.service(node, [peers.backend], policies=policies)
    network, mask = pack_network("fd44::1:a:b:c:0/112")
    node.settings(pod_network_v6=network, pod_mask_v6=mask)
    pod, other = peers.client, "[fd44::1:a:b:d:5]:40000"
    assert same(node.forward(peers.opening(pod, peers.vip)), peers.opening(pod, peers.backend))
    assert node.forward(peers.opening(other, peers.vip)).src == peers.node_address
