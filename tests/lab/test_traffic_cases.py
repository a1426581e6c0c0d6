"""The seven ways to a Service, in every kind of network, and what either side sees of the other."""

from __future__ import annotations

import errno
import socket

import pytest

from bpfsvc.lab.dial import Protocol, ask, connect, tally
from tests.lab.scene import API, EMPTY, EXTERNAL, INGRESS, LOCAL, ONE, WEB, Scene, at, host

OTHERS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


@OTHERS
def test_pod_is_seen_by_the_backend_with_its_own_address(
    scene: Scene, family: int, transport: Protocol, backend: int
) -> None:
    """Case 1: from a pod, the backend sees the pod; the pod sees the frontend."""
    target = scene.lab.pods[backend]
    answer = ask(scene.pod, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert answer.peer == answer.own
    assert host(answer.peer) == scene.pod.address(family)
    assert answer.local == at(target.address(family), 8080)
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_pod_reaches_all_backends(scene: Scene, family: int, transport: Protocol) -> None:
    """Case 1: every backend is chosen, the asking pod included."""
    counts = tally(scene.pod, WEB.vip(family), 80, transport, count=100)
    assert set(counts) == {pod.name for pod in scene.lab.pods}


def test_pod_reaches_itself_by_way_of_its_node(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Case 2, hairpin: the pod sees an address of its node, and its answers come back to it."""
    answer = ask(scene.pod, ONE[0].vip(family), 80, transport)
    assert answer.pod == scene.pod.name
    assert host(answer.peer) == scene.leaving(scene.pod, scene.node, family)
    assert answer.remote == at(ONE[0].vip(family), 80)


def test_pod_without_a_connected_socket_hears_from_the_frontend(scene: Scene, family: int) -> None:
    """Case 1: recvfrom gives the frontend's address to an unconnected UDP socket of a pod."""
    answer = ask(scene.pod, ONE[2].vip(family), 80, "udp", connected=False)
    assert answer.remote == at(ONE[2].vip(family), 80)


@pytest.mark.parametrize("backend", [0, 2], ids=["own node", "other node"])
def test_process_of_the_node_reaches_a_cluster_ip(
    scene: Scene, family: int, transport: Protocol, backend: int
) -> None:
    """Case 3: a process of the node reaches a ClusterIP; getpeername says what it asked for."""
    target = scene.lab.pods[backend]
    answer = ask(scene.node, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert answer.local == at(target.address(family), 8080)
    assert answer.peer == answer.own  # no packet was rewritten on the way
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_process_of_the_node_reaches_a_node_port(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Case 3: on the node's own address and on that of the other node."""
    for node in scene.lab.nodes:
        answer = ask(scene.node, node.address(family), ONE[2].node_port, transport)
        assert answer.pod == scene.lab.pods[2].name
        assert answer.remote == at(node.address(family), ONE[2].node_port)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1"])
def test_process_of_the_node_reaches_a_node_port_on_loopback(
    scene: Scene, transport: Protocol, address: str
) -> None:
    """Case 3: 127.0.0.1:nodePort, and any other address of 127/8."""
    counts = tally(scene.node, address, WEB.node_port, transport, count=60)
    assert set(counts) == {pod.name for pod in scene.lab.pods}
    answer = ask(scene.node, address, ONE[2].node_port, transport)
    assert answer.remote == at(address, ONE[2].node_port)


def test_process_of_the_node_uses_a_mapped_address(scene: Scene, transport: Protocol) -> None:
    """Case 3: an IPv6 socket that asks for ::ffff:10.96.0.22 gets there, and is told so."""
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(scene.node, mapped, 80, transport)
    assert answer.pod == scene.lab.pods[2].name
    assert answer.remote == at(mapped, 80)


def test_one_socket_of_the_node_talks_to_several_frontends(scene: Scene, family: int) -> None:
    """Case 3: each answer to an unconnected UDP socket bears the address of its own frontend."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    for place in (scene.node, scene.pod):
        with place.socket(kind, socket.SOCK_DGRAM) as sender:
            sender.settimeout(2)
            for one, pod in list(zip(ONE, scene.lab.pods, strict=True)) * 2:
                if pod is place:
                    continue
                sender.sendto(b"who\n", (one.vip(family), 80))
                data, remote = sender.recvfrom(1 << 16)
                assert pod.name.encode() in data
                assert remote[:2] == (one.vip(family), 80)


def test_unconnected_socket_of_the_node_with_a_mapped_address(scene: Scene) -> None:
    """Case 3: sendto and recvfrom with v4-mapped addresses."""
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(scene.node, mapped, 80, "udp", connected=False)
    assert (answer.pod, answer.remote) == (scene.lab.pods[2].name, at(mapped, 80))


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_client_of_a_node_port_is_masqueraded(
    scene: Scene, family: int, transport: Protocol, backend: int
) -> None:
    """Case 4: the backend sees the address of the interface by which the node sends to it."""
    target = scene.lab.pods[backend]
    answer = ask(scene.client, scene.node.address(family), ONE[backend].node_port, transport)
    assert answer.pod == target.name
    assert host(answer.peer) == scene.leaving(target, scene.node, family)
    assert answer.remote == at(scene.node.address(family), ONE[backend].node_port)
    assert 10000 <= int(answer.peer.rpartition(":")[2]) <= 29999


def test_client_of_a_node_port_reaches_all_backends(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Case 4: through either node."""
    for node in scene.lab.nodes:
        counts = tally(scene.client, node.address(family), WEB.node_port, transport, count=80)
        assert set(counts) == {pod.name for pod in scene.lab.pods}


def test_client_keeps_its_address_with_the_local_policy(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Case 5: only backends of the node asked, and they see the client."""
    counts = tally(scene.client, scene.node.address(family), LOCAL.node_port, transport, count=60)
    assert set(counts) == {pod.name for pod in scene.node.pods.values()}
    answer = ask(scene.client, scene.node.address(family), LOCAL.node_port, transport)
    assert answer.peer == answer.own
    assert host(answer.peer) == scene.lab.client.address(family)


def test_node_without_a_local_backend_is_silent(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Case 5: a node that has no backend drops what comes from outside."""
    counts = tally(
        scene.client,
        scene.lab.nodes[1].address(family),
        LOCAL.node_port,
        transport,
        count=2,
        timeout=0.1,
    )
    assert counts == {"timeout": 2}


def test_pod_reaches_its_own_nodes_node_port(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """A pod asks its own node; under the Cluster policy it is masqueraded like anybody."""
    answer = ask(scene.pod, scene.node.address(family), ONE[2].node_port, transport)
    assert answer.pod == scene.lab.pods[2].name
    assert host(answer.peer) == scene.leaving(scene.lab.pods[2], scene.node, family)


def test_pod_finds_local_services_on_every_node(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """The Local policy binds strangers: the node's pods reach any backend, with their address."""
    for pod in (scene.lab.pods[1], scene.lab.pods[2]):
        counts = tally(pod, pod.node.address(family), LOCAL.node_port, transport, count=40)
        assert set(counts) == {each.name for each in scene.node.pods.values()}
    answer = ask(scene.lab.pods[2], scene.lab.nodes[1].address(family), LOCAL.node_port, transport)
    assert answer.peer == answer.own


@pytest.mark.parametrize("addresses", [EXTERNAL, INGRESS], ids=["externalIP", "ingress"])
def test_outer_addresses_work_from_everywhere(
    scene: Scene, family: int, transport: Protocol, addresses: dict[int, str]
) -> None:
    """Case 6: from a pod, from a process of the node and from outside."""
    everyone = {pod.name for pod in scene.lab.pods}
    for place in (scene.pod, scene.node, scene.client):
        counts = tally(place, addresses[family], 80, transport, count=60)
        assert set(counts) == everyone
        assert ask(place, addresses[family], 80, transport).remote == at(addresses[family], 80)


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_stranger_to_a_cluster_ip_is_masqueraded(
    scene: Scene, family: int, transport: Protocol, backend: int
) -> None:
    """Case 7: a source outside the cluster CIDR."""
    target = scene.lab.pods[backend]
    answer = ask(scene.client, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert host(answer.peer) == scene.leaving(target, scene.node, family)
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_nobody_home_refuses_the_nodes_processes_at_once(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Without endpoints ECONNREFUSED comes from the socket call itself."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    for to in ((EMPTY.vip(family), 80), (scene.node.address(family), EMPTY.node_port)):
        # A call that may not wait gets its answer from nobody but the hook.
        with scene.node.socket(domain, kind) as made:
            made.setblocking(False)
            assert made.connect_ex(to) == errno.ECONNREFUSED
        if transport == "udp":
            with scene.node.socket(domain, kind) as made, pytest.raises(ConnectionRefusedError):
                made.sendto(b"who\n", to)


def test_pod_reaches_the_nodes_behind_a_service(
    scene: Scene, family: int, transport: Protocol
) -> None:
    """Backends are node addresses, as of default/kubernetes; a CNI may masquerade on the way."""
    counts = tally(scene.pod, API.vip(family), 80, transport, count=60)
    assert set(counts) == {node.name for node in scene.lab.nodes}
    answer = ask(scene.pod, API.vip(family), 80, transport)
    assert answer.remote == at(API.vip(family), 80)


def test_pod_keeps_a_long_connection_to_a_node_behind_a_service(scene: Scene, family: int) -> None:
    """Both directions of a masquerading CNI's translation lie between our hooks: data flows."""
    for _ in range(8):
        with connect(scene.pod, API.vip(family), 80) as conversation:
            assert conversation.fetch(300_000)
            assert conversation.deliver(300_000)


def test_ports_that_are_no_frontend_are_left_alone(scene: Scene, family: int) -> None:
    """A node has only its NodePorts; all else is its own."""
    node = scene.node.address(family)
    assert tally(scene.client, node, 80, count=1) == {"refused": 1}
    assert tally(scene.client, node, 6443, count=5) == {scene.node.name: 5}


def test_ports_that_a_cluster_ip_does_not_have_are_refused(scene: Scene, family: int) -> None:
    """Not even the number of its NodePort is answered there."""
    for asker in (scene.pod, scene.node, scene.client):
        assert tally(asker, WEB.vip(family), WEB.node_port, count=1) == {"refused": 1}
