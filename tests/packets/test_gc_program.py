"""Ended connections are removed; the program in the kernel decides which have ended."""

from __future__ import annotations

import pytest

from tests.packets import queues
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of

LIFETIMES = {
    "tcp_established_seconds": 6,
    "tcp_half_closed_seconds": 4,
    "tcp_closed_seconds": 2,
    "udp_seconds": 6,
    "sctp_seconds": 6,
}
"""Seconds. Few, because the clock of a machine that has just started shows few, too."""

BATCH = 8
"""COLLECT_FLOWS of the C sources."""

NEW_FIELD = "client_first"
"""Zero in the entries of a build that did not have it."""


def established(node: Node, peers: Peers) -> bytes:
    """Establish a connection; return the key of its forward flow."""
    node.settings(**LIFETIMES)
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    return node.flow("ingress", peers.opening(peers.client, peers.vip))


def test_a_live_connection_is_not_removed(node: Node, peers: Peers) -> None:
    flow = established(node, peers)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 0
    assert node.count("connections") == 2


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_an_idle_connection_is_removed_with_its_partner_entry(
    node: Node, peers: Peers, hook: str
) -> None:
    established(node, peers)
    packet = {
        "ingress": peers.opening(peers.client, peers.vip),
        "egress": peers.answer(peers.backend, peers.client),
    }[hook]
    node.age(7)
    assert node.collect(node.flow(hook, packet)) == 1
    assert node.count("connections") == 0


def test_lifetimes_come_from_the_settings(node: Node, peers: Peers) -> None:
    flow = established(node, peers)
    node.age(5)
    assert node.collect(flow) == 0
    node.settings(tcp_established_seconds=4, udp_seconds=4, sctp_seconds=4)
    assert node.collect(flow) == 1


def test_a_question_and_its_answer_are_not_kept_for_longer_than_a_udp_connection(
    node: Node, udp_peers: Peers
) -> None:
    """An operator who shortens --conntrack-udp-timeout means these, too."""
    udp_peers.service(node, [udp_peers.backend])
    udp_peers.begin(node, udp_peers.client, udp_peers.vip, udp_peers.backend)
    flow = node.flow("ingress", udp_peers.opening(udp_peers.client, udp_peers.vip))
    node.settings(half_open_seconds=7, udp_seconds=4)
    node.age(3)
    assert node.collect(flow) == 0
    node.age(5)
    assert node.collect(flow) == 1


def test_a_connection_that_only_one_side_uses_is_alive(node: Node, peers: Peers) -> None:
    flow = established(node, peers)
    node.age(7)
    node.forward(peers.data(peers.backend, peers.client))
    assert node.collect(flow) == 0


def test_a_connection_used_after_the_collection_began_is_alive(node: Node, peers: Peers) -> None:
    """Another CPU may store a later time than the one that the collection read at its start."""
    flow = established(node, peers)
    node.age(-60)
    assert node.collect(flow) == 0
    assert node.count("connections") == 2


@pytest.mark.parametrize("ending", ["FIN both ways", "RST"])
def test_a_closed_connection_is_kept_for_a_while(node: Node, tcp_peers: Peers, ending: str) -> None:
    flow = established(node, tcp_peers)
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    if ending == "RST":
        node.forward(tcp(client, vip, "R"))
    else:
        tcp_peers.close(node, client, vip, backend, client)
    node.age(1)
    assert node.collect(flow) == 0
    node.age(3)
    assert node.collect(flow) == 1
    assert node.count("connections") == 0


def test_a_closed_connection_is_removed_early_when_the_map_is_crowded(
    node: Node, tcp_peers: Peers
) -> None:
    """Not at once: its last acknowledgement may still arrive."""
    flow = established(node, tcp_peers)
    node.settings(tcp_closed_seconds=4)
    tcp_peers.close(node, tcp_peers.client, tcp_peers.vip, tcp_peers.backend, tcp_peers.client)
    node.age(1)
    assert node.collect(flow, crowded=True) == 0
    node.age(3)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 1


def closed_masquerade(
    node: Node, peers: Peers, *, backend_first: bool = True
) -> tuple[bytes, bytes]:
    """Masquerade a connection that both sides then close; return the flows of its two pairs."""
    node.settings(**LIFETIMES)
    peers.service(node, [peers.backend], masquerade=True)
    seen = peers.connect(node, peers.external, peers.vip, peers.backend)
    ends = peers.external, peers.vip, peers.backend, seen
    peers.close(node, *ends, backend_first=backend_first)
    routed = node.flow("ingress", peers.opening(peers.external, peers.vip))
    return routed, node.flow("egress", peers.opening(peers.external, peers.backend))


def test_a_masquerade_port_is_kept_until_the_backend_has_forgotten_it(
    node: Node, tcp_peers: Peers
) -> None:
    """Otherwise the next connection from that port meets a backend in TIME_WAIT.

    Its timestamps may look older than the last one's (they begin anywhere), and then the backend
    answers the SYN by an old acknowledgement, which the client answers by a reset.
    """
    routed, around_the_wire = closed_masquerade(node, tcp_peers)
    node.age(8)
    assert node.collect(routed, around_the_wire) == 1
    assert node.count("connections") == 2
    node.age(55)
    assert node.collect(around_the_wire) == 0
    node.age(61)
    assert node.collect(around_the_wire) == 1
    assert node.count("connections") == 0


def test_a_masquerade_port_is_not_kept_if_the_client_closed_first(
    node: Node, tcp_peers: Peers
) -> None:
    """The backend has forgotten the connection with the client's last acknowledgement."""
    routed, around_the_wire = closed_masquerade(node, tcp_peers, backend_first=False)
    node.age(8)
    assert node.collect(routed, around_the_wire) == 2
    assert node.count("connections") == 0


def test_a_masquerade_port_is_kept_if_both_closed_at_once(node: Node, tcp_peers: Peers) -> None:
    """Each acknowledges the other's FIN after its own, and then waits (RFC 9293, 3.6)."""
    node.settings(**LIFETIMES)
    client, vip, backend, seen = tcp_peers.connected(node, outside=True, masquerade=True)
    for flags in ("FA", "A"):
        node.forward(tcp(client, vip, flags))
        node.forward(tcp(backend, seen, flags))
    node.age(8)
    assert node.collect(node.flow("egress", tcp(client, backend))) == 0


def test_a_masquerade_port_is_kept_if_an_older_build_has_seen_the_end(
    node: Node, tcp_peers: Peers
) -> None:
    """It has not noted who closed first, and the entries are copied field by field."""
    closed_masquerade(node, tcp_peers)
    table, record = node.pinned.map("connections"), node.pinned.layout.maps["connections"].value
    for key, value in list(table.items()):
        table.update(key, record.pack({**record.unpack(value), NEW_FIELD: 0}))
    node.age(8)
    assert node.collect(*(key for key, _ in table.items())) == 1
    assert node.count("connections") == 2


@pytest.mark.parametrize("why", ["crowded", "early_ports"])
def test_a_masquerade_port_is_given_back_early_when_there_is_little_room(
    node: Node, tcp_peers: Peers, why: str
) -> None:
    _, around_the_wire = closed_masquerade(node, tcp_peers)
    node.age(8)
    assert node.collect(around_the_wire) == 0
    assert node.collect(around_the_wire, **{why: True}) == 1


@pytest.mark.parametrize(
    ("why", "left"), [((), 1), (("crowded",), 0), (("early_ports",), 0)], ids=str
)
def test_a_flow_that_waits_for_its_port_is_taken_early_when_there_is_little_room(
    node: Node, tcp_peers: Peers, why: tuple[str, ...], left: int
) -> None:
    """From the queue of those that wait."""
    _, around_the_wire = closed_masquerade(node, tcp_peers)
    queue = node.pinned.map(queues.TIME_WAIT)
    node.age(9)
    queues.take_all(queue)
    queues.put(queue, around_the_wire, 9)
    source = node.pinned.layout.constant("GC_TIME_WAIT")
    node.collect(source=source, **dict.fromkeys(why, True))
    assert len(queues.take_all(queue)) == left


def test_a_port_that_is_noted_does_not_say_that_connections_are_elsewhere(
    node: Node, tcp_peers: Peers
) -> None:
    node.collect(
        node.flow("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.vip)), note=True
    )
    record = node.pinned.layout.maps["port_filters"].value
    overflowed = [
        record.unpack(raw)["overflowed"] for _, raw in node.pinned.map("port_filters").items()
    ]
    assert len(node.filtered()) == 1
    assert not any(overflowed)


def test_a_masquerade_port_is_given_back_early_after_a_reset(node: Node, tcp_peers: Peers) -> None:
    """A backend remembers nothing then."""
    _, around_the_wire = closed_masquerade(node, tcp_peers)
    reset = tcp_peers.opening(tcp_peers.external, tcp_peers.vip)
    reset.payload.flags = "R"
    node.forward(reset)
    node.age(8)
    assert node.collect(around_the_wire) == 1


def test_a_direct_connection_does_not_take_over_a_port_that_is_kept(
    node: Node, tcp_peers: Peers
) -> None:
    external, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    routed, _ = closed_masquerade(node, tcp_peers)
    node.age(8)
    assert node.collect(routed) == 1
    direct = tcp_peers.opening(external, backend)
    assert same(node.forward(direct), direct)
    answer = tcp_peers.answer(backend, external)
    assert same(node.forward(answer), answer)
    again = node.forward(tcp_peers.opening(tcp_peers.with_port(external, 40001), vip))
    assert address_of(tcp_peers.on_node(1)) == again.src


def test_a_new_connection_of_the_same_client_gets_another_port(
    node: Node, tcp_peers: Peers
) -> None:
    external, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    node.settings(**LIFETIMES)
    tcp_peers.service(node, [backend], masquerade=True)
    ports = set()
    for _ in range(8):
        seen = tcp_peers.connect(node, external, vip, backend)
        ports.add(seen)
        tcp_peers.close(node, external, vip, backend, seen)
        node.age(3)
        assert node.collect(node.flow("ingress", tcp_peers.opening(external, vip))) == 1
    assert len(ports) > 6


def test_a_connection_that_is_not_established_has_its_own_lifetime(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    node.settings(half_open_seconds=7, udp_seconds=60)
    node.ingress(peers.opening(peers.client, peers.vip))
    flow = node.flow("ingress", peers.opening(peers.client, peers.vip))
    node.age(6)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 1
    node.ingress(peers.opening(peers.client, peers.vip))
    node.age(8)
    assert node.collect(flow) == 1
    assert node.states() == (0, 0)


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_syn_that_is_sent_again_does_not_keep_an_unanswered_connection(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    """As with netfilter. A client with a port of its own would never leave a dead backend."""
    client, vip, _ = tcp_peers.served(node, outside=True, masquerade=masquerade)
    node.settings(half_open_seconds=7)
    first = node.forward(tcp(client, vip))
    tcp_peers.service(node, [tcp_peers.other_backend], masquerade=masquerade)
    node.age(6)
    assert same(node.forward(tcp(client, vip)), first)
    node.age(8)
    assert same(node.forward(tcp(client, vip)), first)
    flows = [key for key, _ in node.pinned.map("connections").items()]
    assert node.collect(*flows) == (2 if masquerade else 1)
    assert node.forward(tcp(client, vip)).dst == address_of(tcp_peers.other_backend)


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_an_init_that_is_sent_again_does_not_keep_an_association(
    node: Node, sctp_peers: Peers, masquerade: bool
) -> None:
    """Its backend has gone, and the client always uses the same port."""
    peers = sctp_peers
    client, vip, _, _ = peers.connected(node, outside=True, masquerade=masquerade)
    node.settings(**LIFETIMES)
    peers.service(node, [peers.other_backend], masquerade=masquerade)
    node.age(7)
    opening = peers.opening(client, vip)
    assert node.forward(opening).dst == address_of(peers.backend)
    flows = [key for key, _ in node.pinned.map("connections").items()]
    assert node.collect(*flows) == (2 if masquerade else 1)
    assert node.forward(opening).dst == address_of(peers.other_backend)


def test_an_init_that_is_answered_keeps_its_association(node: Node, sctp_peers: Peers) -> None:
    """A client that was started anew may go on with its backend."""
    client, vip, backend, _ = sctp_peers.connected(node)
    node.settings(**LIFETIMES)
    node.age(7)
    node.forward(sctp_peers.opening(client, vip))
    node.forward(sctp_peers.answer(backend, client))
    assert node.collect(node.flow("ingress", sctp_peers.opening(client, vip))) == 0


def test_a_syn_that_was_answered_keeps_its_connection_while_answers_come(
    node: Node, tcp_peers: Peers
) -> None:
    """The client does not get them, or they are late."""
    client, vip, backend = tcp_peers.served(node)
    node.settings(half_open_seconds=7)
    for _ in range(3):
        node.age(6)
        node.forward(tcp(client, vip))
        node.forward(tcp(backend, client, "SA"))
        assert node.collect(node.flow("ingress", tcp(client, vip))) == 0
    node.forward(tcp(client, vip, "A"))
    assert node.states() == (0, 2)


def test_each_protocol_has_its_own_lifetime(node: Node, peers: Peers) -> None:
    flow = established(node, peers)
    names = {"TCP": "tcp_established_seconds", "UDP": "udp_seconds", "SCTP": "sctp_seconds"}
    for name in names.values():
        longer = {other: 60 for other in names.values() if other != name}
        node.settings(**LIFETIMES | longer)
        node.age(8)
        assert node.collect(flow) == (names[peers.protocol] == name)


def test_a_half_closed_connection_is_kept_longer(node: Node, tcp_peers: Peers) -> None:
    flow = established(node, tcp_peers)
    node.forward(tcp(tcp_peers.client, tcp_peers.vip, "FA"))
    node.age(3)
    assert node.collect(flow) == 0
    node.age(5)
    assert node.collect(flow) == 1


def test_a_closed_connection_whose_port_is_in_use_again_is_alive(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    flow = established(node, tcp_peers)
    tcp_peers.close(node, client, vip, backend, client)
    node.age(3)
    tcp_peers.connect(node, client, vip, backend)
    assert node.collect(flow) == 0


def test_force_removes_a_connection_in_any_state(node: Node, peers: Peers) -> None:
    """UDP to a backend that serves no more has no state that would show it."""
    flow = established(node, peers)
    assert node.collect(flow, force=True) == 1
    assert node.count("connections") == 0
    node.ingress(peers.opening(peers.client, peers.vip))
    assert node.collect(flow, force=True) == 1
    assert node.states() == (0, 0)


def test_unknown_flows_are_ignored(node: Node, peers: Peers) -> None:
    flow = established(node, peers)
    unknown = node.flow("egress", peers.opening(peers.client, peers.vip))
    assert node.collect(unknown, flow, unknown, force=True) == 1


def test_each_flow_of_a_batch_is_judged_alone(node: Node, peers: Peers) -> None:
    node.settings(**LIFETIMES)
    peers.service(node, [peers.backend])
    clients = [peers.with_port(peers.client, 5000 + number) for number in range(BATCH)]
    flows = []
    for client in clients:
        peers.connect(node, client, peers.vip, peers.backend)
        flows.append(node.flow("ingress", peers.opening(client, peers.vip)))
    node.age(7)
    alive = peers.data(clients[-1], peers.vip)
    node.forward(alive)
    assert node.collect(*flows) == BATCH - 1
    assert same(node.forward(alive), peers.data(clients[-1], peers.backend))
