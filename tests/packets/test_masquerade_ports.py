"""Which source ports masqueraded connections get."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from tests.packets.node import SHOT, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers

NS_PER_SECOND = 1_000_000_000
HANDSHAKES = [*TCP_PEERS, *SCTP_PEERS]


def test_many_clients_get_different_ports_within_the_range(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=1000)
    seen = set()
    for number in range(400):
        client = peers.with_port(peers.external, 1024 + number)
        out = node.forward(peers.opening(client, peers.vip))
        seen.add(out.payload.sport)
    assert len(seen) == 400
    assert min(seen) >= 20000
    assert max(seen) < 21000


def test_the_whole_range_is_used(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=16)
    seen = {
        node.forward(peers.opening(peers.with_port(peers.external, port), peers.vip)).payload.sport
        for port in range(5000, 5016)
    }
    assert seen == set(range(20000, 20016))


def test_a_port_of_a_connection_that_netfilter_translates_is_not_taken(
    node: Node, peers: Peers
) -> None:
    """kube-proxy's connections go on beside ours, from the same address of the node."""
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=16)
    taken = [(peers.on_node(port), peers.backend) for port in range(20000, 20013)]
    node.netfilter_flows(*taken, protocol=peers.protocol)
    seen = {
        node.forward(peers.opening(peers.with_port(peers.external, port), peers.vip)).payload.sport
        for port in range(5000, 5003)
    }
    assert seen == {20013, 20014, 20015}


def exhaust(node: Node, peers: Peers, frontend: str = "") -> dict[str, str]:
    """Open four connections in a range of four ports; return client -> client as seen."""
    seen = {}
    for port in range(5000, 5004):
        client = peers.with_port(peers.external, port)
        out = node.forward(peers.opening(client, frontend or peers.vip))
        seen[client] = peers.on_node(out.payload.sport)
    assert len(set(seen.values())) == 4
    return seen


def test_when_all_ports_are_taken_a_connection_is_dropped_and_counted(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    exhaust(node, peers)
    fifth = peers.with_port(peers.external, 5004)
    assert node.drops("egress", node.ingress(peers.opening(fifth, peers.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


def test_the_port_of_a_closed_connection_is_used_again_if_no_other_is_free(
    node: Node, tcp_peers: Peers
) -> None:
    """At once, as netfilter does it: a dropped SYN would cost its client a second."""
    vip, backend = tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    node.settings(first=20000, ports=4)
    clients = exhaust(node, tcp_peers)
    for client, seen in clients.items():
        node.forward(tcp(backend, seen, "SA"))
        node.forward(tcp(client, vip, "A"))
    client, seen = next(iter(clients.items()))
    tcp_peers.close(node, client, vip, backend, seen)
    fifth = tcp_peers.with_port(tcp_peers.external, 5004)
    assert same(node.forward(tcp(fifth, vip)), tcp(seen, backend))
    assert same(node.forward(tcp(backend, seen, "SA")), tcp(vip, fifth, "SA"))


def test_the_port_of_a_refused_connection_is_used_again_if_no_other_is_free(
    node: Node, tcp_peers: Peers
) -> None:
    vip, backend = tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    node.settings(first=20000, ports=4)
    client, seen = next(iter(exhaust(node, tcp_peers).items()))
    assert same(node.forward(tcp(backend, seen, "RA")), tcp(vip, client, "RA"))
    fifth = tcp_peers.with_port(tcp_peers.external, 5004)
    assert same(node.forward(tcp(fifth, vip)), tcp(seen, backend))


def test_an_attempt_that_its_client_has_reset_keeps_its_port_for_half_a_second(
    node: Node, tcp_peers: Peers
) -> None:
    """The client repeats its SYN. By another port it may meet another half-open connection.

    In a flood of SYNs all other ports are taken, and each that is free is taken at once.
    """
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    client, seen = next(iter(exhaust(node, peers).items()))
    node.forward(tcp(peers.backend, seen, "A"))
    node.forward(tcp(client, peers.vip, "R"))
    fifth = peers.with_port(peers.external, 5004)
    assert node.drops("egress", node.ingress(peers.opening(fifth, peers.vip)))
    assert same(node.forward(tcp(client, peers.vip)), tcp(seen, peers.backend))
    node.forward(tcp(peers.backend, seen, "A"))
    node.forward(tcp(client, peers.vip, "R"))
    grow_older(node)
    assert node.forward(peers.opening(fifth, peers.vip)).payload.sport in range(20000, 20004)


def test_the_port_of_a_connection_that_has_just_closed_waits_while_another_is_free(
    node: Node, tcp_peers: Peers
) -> None:
    """Its last packets may still arrive."""
    vip, backend = tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    node.settings(first=20000, ports=2)
    client = tcp_peers.external
    seen = tcp_peers.connect(node, client, vip, backend)
    tcp_peers.close(node, client, vip, backend, seen)
    later = tcp_peers.with_port(client, 5004)
    assert tcp_peers.connect(node, later, vip, backend) != seen


def test_ports_are_used_in_turn(node: Node, peers: Peers) -> None:
    """So that one that was just given back is not used again before all others."""
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=16)
    got = [
        node.forward(peers.opening(peers.with_port(peers.external, port), peers.vip)).payload.sport
        for port in range(5000, 5016)
    ]
    begin = got[0] - 20000
    assert got == [20000 + (begin + number) % 16 for number in range(16)]


def test_each_backend_has_a_turn_of_its_own(node: Node, peers: Peers) -> None:
    """Who sees the ports towards one backend does not know the ports towards others.

    That is so with each secret, also with one that has all bits.
    """
    node.settings(port_secret=0xFFFFFFFF)
    firsts = set()
    for number in range(8):
        backend = peers.with_port(peers.backend, 8000 + number)
        peers.service(node, [backend], name=f"web{number}", masquerade=True)
        client = peers.with_port(peers.external, 5000 + number)
        firsts.add(node.forward(peers.opening(client, peers.vip)).payload.sport - number)
    assert len(firsts) > 4


def closed_by(node: Node, peers: Peers, *, backend_first: bool) -> str:
    """Take all four ports, and close the connection of one.

    Return the client's end of that connection, as the backend saw it.
    """
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    client, seen = next(iter(exhaust(node, peers).items()))
    node.forward(tcp(peers.backend, seen, "SA"))
    node.forward(tcp(client, peers.vip, "A"))
    peers.close(node, client, peers.vip, peers.backend, seen, backend_first=backend_first)
    return seen


@pytest.mark.parametrize("backend_first", [False, True])
def test_the_port_of_a_closed_connection_is_used_again_by_the_next_when_no_other_is_free(
    node: Node, tcp_peers: Peers, backend_first: bool
) -> None:
    seen = closed_by(node, tcp_peers, backend_first=backend_first)
    node.age(3)
    later = tcp_peers.with_port(tcp_peers.external, 5004)
    assert same(node.forward(tcp(later, tcp_peers.vip)), tcp(seen, tcp_peers.backend))


def grow_older(node: Node) -> None:
    """Let all connections have begun a second ago, and forget how few ports there were."""
    for table in ("new_connections", "connections"):
        node.set_fields(table, created=time.monotonic_ns() - NS_PER_SECOND)
    node.set_fields("port_shortages", noted=0)


def half_open(node: Node, peers: Peers) -> dict[str, str]:
    """Take all four ports by connections that are not established."""
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    clients = exhaust(node, peers)
    for client, seen in clients.items():
        assert peers.begin(node, client, peers.vip, peers.backend) == seen
    return clients


def test_the_port_of_a_connection_that_was_never_established_is_used_again_after_5_seconds(
    node: Node, peers: Peers
) -> None:
    clients = half_open(node, peers)
    fifth = peers.with_port(peers.external, 5004)
    assert node.drops("egress", node.ingress(peers.opening(fifth, peers.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1
    node.age(6)
    assert peers.connect(node, fifth, peers.vip, peers.backend) in clients.values()
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


@pytest.mark.parametrize("peers", HANDSHAKES, ids=str)
def test_a_handshake_that_is_not_complete_after_a_second_gives_its_port_if_no_other_is_free(
    node: Node, peers: Peers
) -> None:
    """A flood of SYNs to one backend has all ports. Who completes a handshake gets one of them."""
    clients = half_open(node, peers)
    established, seen = clients.popitem()
    arrives, leaves = peers.proof(established, peers.vip, peers.backend, seen)
    assert same(node.forward(arrives), leaves)
    grow_older(node)
    later = [peers.with_port(peers.external, 6000 + number) for number in range(3)]
    ports = {peers.connect(node, client, peers.vip, peers.backend) for client in later}
    assert ports == set(clients.values())
    back = node.forward(peers.data(peers.backend, seen))
    assert same(back, peers.data(peers.vip, established))


def test_a_question_without_an_answer_keeps_its_port_for_longer(
    node: Node, udp_peers: Peers
) -> None:
    """A server may take its time."""
    udp_peers.service(node, [udp_peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    exhaust(node, udp_peers)
    grow_older(node)
    fifth = udp_peers.with_port(udp_peers.external, 5004)
    assert node.drops("egress", node.ingress(udp_peers.opening(fifth, udp_peers.vip)))


def test_a_question_that_has_its_answer_gives_its_port_if_no_other_is_free(
    node: Node, udp_peers: Peers
) -> None:
    """A client that has gone on after its answer keeps the port, as in netfilter's full table."""
    peers = udp_peers
    clients = half_open(node, peers)
    goes_on = peers.with_port(peers.external, 5000)
    node.forward(peers.data(goes_on, peers.vip))
    later = [peers.with_port(peers.external, 6000 + number) for number in range(3)]
    assert node.drops("egress", node.ingress(peers.opening(later[0], peers.vip)))
    grow_older(node)
    seen = {
        peers.on_node(node.forward(peers.opening(client, peers.vip)).payload.sport)
        for client in later
    }
    assert seen == set(clients.values()) - {clients[goes_on]}


def test_each_port_of_an_abandoned_flood_is_used_again_once(node: Node, peers: Peers) -> None:
    clients = half_open(node, peers)
    node.age(6)
    later = [peers.with_port(peers.external, 6000 + number) for number in range(4)]
    seen = {peers.connect(node, client, peers.vip, peers.backend): client for client in later}
    assert set(seen) == set(clients.values())
    for port, client in seen.items():
        back = node.forward(peers.data(peers.backend, port))
        assert same(back, peers.data(peers.vip, client))


def test_a_client_that_lost_its_port_does_not_refresh_the_new_owners_entry(
    node: Node, peers: Peers
) -> None:
    clients = half_open(node, peers)
    node.age(6)
    fifth = peers.with_port(peers.external, 5004)
    seen = peers.connect(node, fifth, peers.vip, peers.backend)
    robbed = next(client for client, port in clients.items() if port == seen)
    verdict, out = node.run("egress", node.ingress(peers.data(robbed, peers.vip)))
    assert verdict == SHOT or peers.with_port(out.src, out.payload.sport) != seen
    back = node.forward(peers.data(peers.backend, seen))
    assert same(back, peers.data(peers.vip, fifth))


def test_the_port_of_an_established_connection_is_kept_however_long_it_is_silent(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    for port in range(5000, 5004):
        peers.connect(node, peers.with_port(peers.external, port), peers.vip, peers.backend)
    node.age(60)
    fifth = peers.with_port(peers.external, 5004)
    assert node.drops("egress", node.ingress(peers.opening(fifth, peers.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


def test_all_ports_can_be_used_again_for_another_backend(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    peers.service(
        node, [peers.other_backend], "other", frontends=[peers.other_vip], masquerade=True
    )
    node.settings(first=20000, ports=4)
    first = exhaust(node, peers)
    second = exhaust(node, peers, peers.other_vip)
    assert set(first.values()) == set(second.values())
    for client, seen in second.items():
        back = node.forward(peers.answer(peers.other_backend, seen))
        assert same(back, peers.answer(peers.other_vip, client))


def test_all_ports_can_be_used_again_for_another_protocol(node: Node, udp_peers: Peers) -> None:
    udp_peers.service(node, [udp_peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    exhaust(node, udp_peers)
    node.service(
        "tcp",
        [udp_peers.backend],
        frontends=[udp_peers.vip],
        masquerade=True,
        family=udp_peers.family,
    )
    assert node.forward(tcp(udp_peers.external, udp_peers.vip)).payload.sport in range(20000, 20004)


@pytest.mark.parametrize("peers", TCP_PEERS + UDP_PEERS, ids=str)
def test_a_port_on_which_the_node_itself_listens_is_not_taken(node: Node, peers: Peers) -> None:
    """The kernel has no helper that finds SCTP sockets."""
    family = socket.AF_INET6 if peers.family == 6 else socket.AF_INET
    kind = socket.SOCK_STREAM if peers.protocol == "TCP" else socket.SOCK_DGRAM
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=2)
    with socket.socket(family, kind) as own:
        own.bind(("", 20000))
        if peers.protocol == "TCP":
            own.listen()
        out = node.forward(peers.opening(peers.with_port(peers.external, 5000), peers.vip))
        assert out.payload.sport == 20001
        second = peers.opening(peers.with_port(peers.external, 5001), peers.vip)
        assert node.drops("egress", node.ingress(second))


def test_a_stream_that_is_never_answered_keeps_its_port_while_it_sends(
    node: Node, udp_peers: Peers
) -> None:
    """As logs and figures are sent. Another client gets no port, as none is free."""
    udp_peers.service(node, [udp_peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    clients = exhaust(node, udp_peers)
    for _ in range(3):
        node.age(6)
        for client, seen in clients.items():
            out = node.forward(udp_peers.data(client, udp_peers.vip))
            assert same(out, udp_peers.data(seen, udp_peers.backend))
        fifth = udp_peers.with_port(udp_peers.external, 5004)
        assert node.drops("egress", node.ingress(udp_peers.opening(fifth, udp_peers.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 3


def test_the_port_of_a_connection_that_only_the_backend_has_closed_is_not_used_again(
    node: Node, tcp_peers: Peers
) -> None:
    """Its client may go on sending."""
    peers = tcp_peers
    node.settings(ports=1)
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    node.forward(tcp(backend, seen, "FA"))
    other = peers.with_port(peers.external, 40001)
    assert node.drops("egress", node.ingress(peers.opening(other, vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1
    assert same(node.forward(peers.data(client, vip)), peers.data(seen, backend))


def test_while_it_is_not_known_which_ports_there_are_no_turn_is_counted(
    node: Node, peers: Peers
) -> None:
    """A division by their number would be one by zero."""
    peers.service(node, [peers.backend], masquerade=True)
    turns = node.pinned.map("masquerade_turns")
    for ports, counted in ((0, 0), (1000, 1)):
        node.settings(ports=ports)
        before = int.from_bytes(turns.lookup(bytes(4)) or b"", sys.byteorder)
        client = peers.with_port(peers.external, 5000 + ports)
        out = node.ingress(peers.opening(client, peers.vip))
        assert same(out, peers.opening(client, peers.backend))
        assert int.from_bytes(turns.lookup(bytes(4)) or b"", sys.byteorder) - before == counted
