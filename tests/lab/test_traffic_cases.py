"""Seven cases of traffic to a Service, in every kind of network, seen from both sides."""

from __future__ import annotations

import errno
import socket

import pytest

from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from tests.lab.testbed import (
    API,
    EMPTY,
    EXTERNAL,
    INGRESS,
    LOCAL,
    ONE,
    WEB,
    Testbed,
    ask_until_port_is_kept,
    at,
    host,
)

OTHERS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


@OTHERS
def test_pod_is_seen_by_the_backend_with_its_own_address(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    """Case 1: from a pod, the backend sees the pod; the pod sees the frontend."""
    target = testbed.lab.pods[backend]
    answer = ask_until_port_is_kept(testbed.pod, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert answer.peer == answer.own
    assert host(answer.peer) == testbed.pod.address(family)
    assert answer.local == at(target.address(family), 8080)
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_pod_reaches_all_backends(testbed: Testbed, family: int, transport: Protocol) -> None:
    """Case 1: every backend is chosen, including the client pod itself."""
    counts = tally(testbed.pod, WEB.vip(family), 80, transport, count=100)
    assert set(counts) == {pod.name for pod in testbed.lab.pods}


def test_pod_reaches_itself_through_its_node(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Case 2, hairpin: the pod sees an address of its node, and its answers come back to it."""
    answer = ask(testbed.pod, ONE[0].vip(family), 80, transport)
    assert answer.pod == testbed.pod.name
    assert host(answer.peer) == testbed.leaving(testbed.pod, testbed.node, family)
    assert answer.remote == at(ONE[0].vip(family), 80)


def test_unconnected_socket_of_a_pod_gets_replies_from_the_frontend(
    testbed: Testbed, family: int
) -> None:
    """Case 1: recvfrom of an unconnected UDP socket returns the frontend's address."""
    answer = ask(testbed.pod, ONE[2].vip(family), 80, "udp", connected=False)
    assert answer.remote == at(ONE[2].vip(family), 80)


@pytest.mark.parametrize("backend", [0, 2], ids=["own node", "other node"])
def test_process_of_the_node_reaches_a_cluster_ip(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    """Case 3: a process of the node reaches a ClusterIP; getpeername returns the frontend."""
    target = testbed.lab.pods[backend]
    answer = ask(testbed.node, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert answer.local == at(target.address(family), 8080)
    assert answer.peer == answer.own  # no packet was rewritten
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_process_of_the_node_reaches_a_node_port(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Case 3: on the node's own address and on the other node's."""
    for node in testbed.lab.nodes:
        answer = ask(testbed.node, node.address(family), ONE[2].node_port, transport)
        assert answer.pod == testbed.lab.pods[2].name
        assert answer.remote == at(node.address(family), ONE[2].node_port)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1"])
def test_process_of_the_node_reaches_a_node_port_on_loopback(
    testbed: Testbed, transport: Protocol, address: str
) -> None:
    """Case 3: 127.0.0.1:nodePort, and any other address of 127/8."""
    counts = tally(testbed.node, address, WEB.node_port, transport, count=60)
    assert set(counts) == {pod.name for pod in testbed.lab.pods}
    answer = ask(testbed.node, address, ONE[2].node_port, transport)
    assert answer.remote == at(address, ONE[2].node_port)


def test_process_of_the_node_uses_a_mapped_address(testbed: Testbed, transport: Protocol) -> None:
    """Case 3: an IPv6 socket reaches ::ffff:10.96.0.22, and getpeername returns that."""
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(testbed.node, mapped, 80, transport)
    assert answer.pod == testbed.lab.pods[2].name
    assert answer.remote == at(mapped, 80)


def test_one_socket_of_the_node_talks_to_several_frontends(testbed: Testbed, family: int) -> None:
    """Case 3: each answer to an unconnected UDP socket has the address of its own frontend."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    for client in (testbed.node, testbed.pod):
        with client.socket(kind, socket.SOCK_DGRAM) as sender:
            sender.settimeout(2)
            for one, pod in list(zip(ONE, testbed.lab.pods, strict=True)) * 2:
                if pod is client:
                    continue
                sender.sendto(b"who\n", (one.vip(family), 80))
                data, remote = sender.recvfrom(1 << 16)
                assert pod.name.encode() in data
                assert remote[:2] == (one.vip(family), 80)


def test_unconnected_socket_of_the_node_with_a_mapped_address(testbed: Testbed) -> None:
    """Case 3: sendto and recvfrom with v4-mapped addresses."""
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(testbed.node, mapped, 80, "udp", connected=False)
    assert (answer.pod, answer.remote) == (testbed.lab.pods[2].name, at(mapped, 80))


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_client_of_a_node_port_is_masqueraded(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    """Case 4: the backend sees the address of the node's interface towards it."""
    target = testbed.lab.pods[backend]
    answer = ask(testbed.client, testbed.node.address(family), ONE[backend].node_port, transport)
    assert answer.pod == target.name
    assert host(answer.peer) == testbed.leaving(target, testbed.node, family)
    assert answer.remote == at(testbed.node.address(family), ONE[backend].node_port)
    assert 10000 <= int(answer.peer.rpartition(":")[2]) <= 29999


def test_client_of_a_node_port_reaches_all_backends(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Case 4: through either node."""
    for node in testbed.lab.nodes:
        counts = tally(testbed.client, node.address(family), WEB.node_port, transport, count=80)
        assert set(counts) == {pod.name for pod in testbed.lab.pods}


def test_client_keeps_its_address_with_the_local_policy(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Case 5: only backends of that node answer, and they see the client."""
    counts = tally(
        testbed.client, testbed.node.address(family), LOCAL.node_port, transport, count=60
    )
    assert set(counts) == {pod.name for pod in testbed.node.pods.values()}
    answer = ask_until_port_is_kept(
        testbed.client, testbed.node.address(family), LOCAL.node_port, transport
    )
    assert answer.peer == answer.own
    assert host(answer.peer) == testbed.lab.client.address(family)


def test_node_without_a_local_backend_drops_external_clients(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Case 5: a node without a backend drops packets from outside."""
    counts = tally(
        testbed.client,
        testbed.lab.nodes[1].address(family),
        LOCAL.node_port,
        transport,
        count=2,
        timeout=0.05,
    )
    assert counts == {"timeout": 2}


def test_pod_reaches_its_own_nodes_node_port(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """A pod connects to its own node; with the Cluster policy it is masqueraded like others."""
    answer = ask(testbed.pod, testbed.node.address(family), ONE[2].node_port, transport)
    assert answer.pod == testbed.lab.pods[2].name
    assert host(answer.peer) == testbed.leaving(testbed.lab.pods[2], testbed.node, family)


def test_pod_finds_local_services_on_every_node(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """The Local policy is for external clients: local pods reach any backend, unmasqueraded."""
    for pod in (testbed.lab.pods[1], testbed.lab.pods[2]):
        counts = tally(pod, pod.node.address(family), LOCAL.node_port, transport, count=40)
        assert set(counts) == {each.name for each in testbed.node.pods.values()}
    answer = ask_until_port_is_kept(
        testbed.lab.pods[2], testbed.lab.nodes[1].address(family), LOCAL.node_port, transport
    )
    assert answer.peer == answer.own


@pytest.mark.parametrize("addresses", [EXTERNAL, INGRESS], ids=["externalIP", "ingress"])
def test_external_addresses_work_from_everywhere(
    testbed: Testbed, family: int, transport: Protocol, addresses: dict[int, str]
) -> None:
    """Case 6: from a pod, from a process of the node and from outside."""
    everyone = {pod.name for pod in testbed.lab.pods}
    for client in (testbed.pod, testbed.node, testbed.client):
        counts = tally(client, addresses[family], 80, transport, count=60)
        assert set(counts) == everyone
        assert ask(client, addresses[family], 80, transport).remote == at(addresses[family], 80)


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_external_client_of_a_cluster_ip_is_masqueraded(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    """Case 7: a source outside the cluster CIDR."""
    target = testbed.lab.pods[backend]
    answer = ask(testbed.client, ONE[backend].vip(family), 80, transport)
    assert answer.pod == target.name
    assert host(answer.peer) == testbed.leaving(target, testbed.node, family)
    assert answer.remote == at(ONE[backend].vip(family), 80)


def test_without_endpoints_processes_of_the_node_are_refused_at_once(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """The socket call itself fails with ECONNREFUSED."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    for to in ((EMPTY.vip(family), 80), (testbed.node.address(family), EMPTY.node_port)):
        # Only the hook can answer a call that may not wait.
        with testbed.node.socket(domain, kind) as made:
            made.setblocking(False)
            assert made.connect_ex(to) == errno.ECONNREFUSED
        if transport == "udp":
            with testbed.node.socket(domain, kind) as made, pytest.raises(ConnectionRefusedError):
                made.sendto(b"who\n", to)


def test_pod_reaches_the_nodes_behind_a_service(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Backends are node addresses, as in default/kubernetes; a CNI may masquerade in between."""
    counts = tally(testbed.pod, API.vip(family), 80, transport, count=60)
    assert set(counts) == {node.name for node in testbed.lab.nodes}
    answer = ask(testbed.pod, API.vip(family), 80, transport)
    assert answer.remote == at(API.vip(family), 80)


def test_pod_keeps_a_long_connection_to_a_node_behind_a_service(
    testbed: Testbed, family: int
) -> None:
    """A masquerading CNI translates both directions between our hooks, and data still flows."""
    for _ in range(8):
        with connect(testbed.pod, API.vip(family), 80) as conversation:
            assert conversation.fetch(300_000)
            assert conversation.deliver(300_000)


def test_ports_that_are_no_frontend_pass_unchanged(testbed: Testbed, family: int) -> None:
    """Only NodePorts of a node's address are translated; its other ports belong to the node."""
    node = testbed.node.address(family)
    assert tally(testbed.client, node, 80, count=1) == {"refused": 1}
    assert tally(testbed.client, node, 6443, count=5) == {testbed.node.name: 5}


def test_ports_that_a_cluster_ip_does_not_have_are_refused(testbed: Testbed, family: int) -> None:
    """That includes the number of its NodePort."""
    for asker in (testbed.pod, testbed.node, testbed.client):
        assert tally(asker, WEB.vip(family), WEB.node_port, count=1) == {"refused": 1}
