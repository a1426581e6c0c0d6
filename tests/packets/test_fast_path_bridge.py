"""The fast path to and from pods that are on a bridge, by whose ports the programs see packets."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.base.address import pack
from tests.packets.fast_path import FastPathTestbed, forwarded, limit
from tests.packets.node import REDIRECT, UNSPEC
from tests.packets.packet import same
from tests.packets.peers import Peers, address_of
from tests.packets.test_fast_path_direct import conversation

BRIDGE_MAC = "02:00:00:00:be:01"


def put_on_bridge(testbed: FastPathTestbed, *names: str) -> None:
    """Have the programs take interfaces for ports of the bridge ``tun0``."""
    bridge = testbed.ends["tun0"].index
    testbed.write_interface("tun0", peer=False, bridge=bridge)
    for name in names:
        testbed.write_interface(name, bridge=bridge)
    testbed.node.hardware_address(BRIDGE_MAC)


def open_by_bridge(testbed: FastPathTestbed, peers: Peers) -> None:
    """Have the client, on a bridge, and the backend on another node exchange first packets."""
    put_on_bridge(testbed, "pod0")
    testbed.route(peers.client, "tun0")
    testbed.run("ingress", "pod0", peers.opening(peers.client, peers.backend), to=BRIDGE_MAC)
    testbed.run("ingress", "eth0", peers.answer(peers.backend, peers.client))


def test_a_frame_for_the_bridge_is_fast_and_one_for_another_pod_is_switched(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """To its port both are for another machine."""
    peers = fast_peers
    open_by_bridge(testbed, peers)
    packet = peers.data(peers.client, peers.backend)
    verdict, frame = testbed.run("ingress", "pod0", packet, to=BRIDGE_MAC)
    assert verdict == REDIRECT
    assert forwarded(frame.payload, packet)
    verdict, frame = testbed.run("ingress", "pod0", packet, to="02:00:00:00:00:99")
    assert verdict == UNSPEC
    assert same(frame.payload, packet)


def test_packets_to_a_pod_on_a_bridge_go_to_its_neighbour_by_the_bridge(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    peers = fast_peers
    open_by_bridge(testbed, peers)
    packet = peers.data(peers.backend, peers.client)
    assert forwarded(testbed.to_neighbour("eth0", packet), packet)


def test_from_one_port_of_a_bridge_to_another_packets_take_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    peers = fast_peers
    put_on_bridge(testbed, "pod0", "pod1")
    testbed.route(peers.client, "tun0")
    testbed.route(peers.other_backend, "tun0")
    for sent, packet in conversation(peers, peers.client, peers.other_backend):
        verdict, frame = testbed.run("ingress", "pod0" if sent else "pod1", packet, to=BRIDGE_MAC)
        assert verdict == UNSPEC
        assert same(frame.payload, packet)


def be_neighbour(testbed: FastPathTestbed, pod: str, mac: str) -> None:
    """Have the node know this hardware address for a pod on the bridge."""
    bridge = testbed.ends["tun0"].index
    testbed.here.netlink.neigh(
        "replace", ifindex=bridge, dst=address_of(pod), lladdr=mac, nud="permanent"
    )
    testbed.forget_routes()


def put_client_on_bridge(testbed: FastPathTestbed, peers: Peers) -> None:
    """Have the client be behind a port, with the hardware address that the node knows for it."""
    put_on_bridge(testbed, "pod0")
    testbed.node.pinned.map("pod_ports").replace({})
    testbed.route(peers.client, "tun0")
    be_neighbour(testbed, peers.client, testbed.far["pod0"])


def open_past_port(testbed: FastPathTestbed, peers: Peers) -> None:
    """Have such a client and the backend on another node exchange first packets."""
    put_client_on_bridge(testbed, peers)
    testbed.run("ingress", "pod0", peers.opening(peers.client, peers.backend), to=BRIDGE_MAC)
    testbed.run("ingress", "eth0", peers.answer(peers.backend, peers.client))
    testbed.forget_routes()


def is_past_port(testbed: FastPathTestbed, peers: Peers) -> bool:
    """True if a packet goes into the pod past its port; False if it goes to it by the bridge."""
    packet = peers.data(peers.backend, peers.client)
    verdict, frame = testbed.run("ingress", "eth0", packet)
    assert verdict == REDIRECT
    assert forwarded(frame.payload, packet)
    if frame.dst == testbed.ends["eth0"].mac:
        return False
    assert (frame.src, frame.dst) == (testbed.ends["tun0"].mac, testbed.far["pod0"])
    return True


def test_a_pod_on_a_bridge_gets_packets_past_its_port_once_it_has_sent_one(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_past_port(testbed, fast_peers)
    assert is_past_port(testbed, fast_peers)


def test_a_connection_through_a_service_gets_its_answers_past_the_port(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    peers = fast_peers
    client, vip, backend = peers.client, peers.vip, peers.backend
    put_client_on_bridge(testbed, peers)
    peers.service(testbed.node, [backend])
    testbed.run("ingress", "pod0", peers.opening(client, vip), to=BRIDGE_MAC)
    # Egress of the port does what the first packets need.
    answered = testbed.egress("pod0", testbed.to_neighbour("eth0", peers.answer(backend, client)))
    assert forwarded(answered, peers.answer(vip, client))
    testbed.run("ingress", "pod0", peers.data(client, vip), to=BRIDGE_MAC)
    verdict, frame = testbed.run("ingress", "eth0", peers.data(backend, client))
    assert (verdict, frame.dst) == (REDIRECT, testbed.far["pod0"])
    assert forwarded(frame.payload, peers.data(vip, client))


def test_answers_of_a_backend_on_a_bridge_are_fast_though_they_come_by_its_port(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Packets to the backend leave by the bridge. By another interface answers take the stack."""
    peers, client, near = fast_peers, fast_peers.client, fast_peers.other_backend
    put_on_bridge(testbed, "pod1")
    testbed.route(near, "tun0")
    peers.service(testbed.node, [near])
    testbed.to_neighbour("pod0", peers.opening(client, peers.vip))
    for packet in (peers.answer(near, client), peers.data(near, client)):
        assert same(testbed.to_stack("eth0", packet), packet)
        verdict, frame = testbed.run("ingress", "pod1", packet, to=BRIDGE_MAC)
        assert verdict == REDIRECT
        assert limit(frame.payload) == limit(packet) - 1


def test_the_bridge_is_asked_now_and_then_so_that_the_neighbour_is_checked(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_past_port(testbed, fast_peers)
    assert is_past_port(testbed, fast_peers)
    testbed.outdate_routes(asked=63)
    assert not is_past_port(testbed, fast_peers)
    testbed.outdate_routes(asked=64)
    assert is_past_port(testbed, fast_peers)


def test_a_pod_with_another_hardware_address_is_reached_by_the_bridge(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """As where its address has gone to a new pod."""
    open_past_port(testbed, fast_peers)
    be_neighbour(testbed, fast_peers.client, "02:00:00:00:00:99")
    assert not is_past_port(testbed, fast_peers)


def test_packets_in_the_name_of_another_pod_lead_nothing_to_their_sender(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    peers = fast_peers
    open_past_port(testbed, peers)
    put_on_bridge(testbed, "pod1")
    testbed.run("ingress", "pod1", peers.opening(peers.client, peers.backend), to=BRIDGE_MAC)
    testbed.forget_routes()
    assert is_past_port(testbed, peers)
    testbed.forget_routes()
    testbed.node.pinned.map("pod_ports").replace({})
    testbed.run("ingress", "pod1", peers.opening(peers.client, peers.backend), to=BRIDGE_MAC)
    assert not is_past_port(testbed, peers)


@pytest.mark.parametrize("changed", ["queues", "has a program of others", "is of another bridge"])
def test_a_port_that_must_see_packets_is_not_passed(
    testbed: FastPathTestbed, fast_peers: Peers, changed: str
) -> None:
    """``peer`` is not set where it has a queueing discipline."""
    open_past_port(testbed, fast_peers)
    bridge = testbed.ends["tun0"].index
    testbed.write_interface(
        "pod0",
        peer=changed != "queues",
        shortcut=changed != "has a program of others",
        bridge=bridge + (changed == "is of another bridge"),
    )
    assert not is_past_port(testbed, fast_peers)


def test_a_port_that_is_gone_is_not_used(testbed: FastPathTestbed, fast_peers: Peers) -> None:
    """While no agent runs its entries stay, and a new pod may have both of its addresses."""
    open_past_port(testbed, fast_peers)
    ports, interfaces = (testbed.node.pinned.map(name) for name in ("pod_ports", "interfaces"))
    gone = struct.pack("=I", 4_000_000)
    ((key, value),) = ports.items()
    assert key == pack(address_of(fast_peers.client))
    interfaces.update(gone, interfaces.lookup(value[:4]) or b"")
    ports.update(key, gone + value[4:])
    testbed.forget_routes()
    assert not is_past_port(testbed, fast_peers)
    interfaces.delete_many([gone])


@pytest.mark.parametrize("known", ["another port", *range(6)])
def test_what_a_pod_sends_replaces_what_was_known_of_its_port(
    testbed: FastPathTestbed, fast_peers: Peers, known: str | int
) -> None:
    """As where the address was that of another pod: a number is a byte of its MAC address."""
    peers, pinned = fast_peers, testbed.node.pinned
    put_client_on_bridge(testbed, peers)
    index, mac = testbed.ends["pod0"].index, bytes.fromhex(testbed.far["pod0"].replace(":", ""))
    if isinstance(known, int):
        mac = mac[:known] + bytes([mac[known] ^ 1]) + mac[known + 1 :]
    else:
        index = testbed.ends["pod1"].index
    record = pinned.layout.maps["pod_ports"].value
    entry = record.pack({"ifindex": index, "mac": mac})
    pinned.map("pod_ports").update(pack(address_of(peers.client)), entry)
    testbed.run("ingress", "pod0", peers.opening(peers.client, peers.backend), to=BRIDGE_MAC)
    testbed.run("ingress", "eth0", peers.answer(peers.backend, peers.client))
    testbed.forget_routes()
    assert is_past_port(testbed, peers)
