"""Resets of connections to an endpoint that left: who gets one, from where, with what number."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from bpfsvc.datapath.maps.tcp_connections import TcpConnection, TcpConnections
from bpfsvc.datapath.resets import Reset, packet_of
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.departures import Departed
from tests.packets.conversation import Conversation
from tests.packets.node import Node
from tests.packets.packet import address_port, same
from tests.packets.peers import Peers
from tests.packets.test_resets import KINDS

CLOCK_TICK = 0.01
"""Seconds by which the kernel's coarse clock may be late (HZ is 100 at least)."""


def departed(conversation: Conversation, endpoint: str = "") -> Departed:
    """Return the backend as one that left the Service of the conversation."""
    (service,) = {connection.service_id for connection in conversation.node.applied_state}
    return service, address_port(endpoint or conversation.peers.backend)


def matching(conversation: Conversation) -> list[TcpConnection]:
    return found_to(conversation, {departed(conversation)})


def found_to(conversation: Conversation, wanted: set[Departed]) -> list[TcpConnection]:
    """Return the connections to some backends, looked for as those of their Services."""
    services = {service for service, _ in wanted}
    connections = TcpConnections(conversation.node.pinned)
    return [connection for _, connection in connections.to(services, wanted.__contains__)]


def resets(conversation: Conversation) -> dict[Place, Reset]:
    """Remove the connection; return the resets by their destinations."""
    made = TcpConnections(conversation.node.pinned).remove(matching(conversation))
    by_destination = {connection.destination: connection for connection in made}
    assert len(by_destination) == len(made)
    return by_destination


def as_packet(reset: Reset) -> Packet:
    raw = packet_of(reset)
    return IP(raw) if raw[0] >> 4 == 4 else IPv6(raw)


@pytest.fixture
def conversation(node: Node, tcp_peers: Peers, masquerade: bool) -> Conversation:
    return Conversation(node, tcp_peers, masquerade).open()


@KINDS
def test_the_client_gets_the_number_it_expects_from_the_frontend(
    conversation: Conversation,
) -> None:
    reset = resets(conversation)[address_port(conversation.client)]
    assert reset.source == address_port(conversation.peers.vip)
    assert reset.sequence == conversation.received & 0xFFFFFFFF
    packet = as_packet(reset)
    assert same(conversation.node.egress(packet.copy()), packet)


@KINDS
def test_the_backend_gets_the_number_it_expects_from_the_client_it_knows(
    conversation: Conversation,
) -> None:
    reset = resets(conversation)[address_port(conversation.peers.backend)]
    assert reset.sequence == conversation.sent & 0xFFFFFFFF
    assert reset.source == address_port(conversation.seen)
    packet = as_packet(reset)
    assert same(conversation.node.egress(packet.copy()), packet)


def test_of_two_entries_the_later_number_counts_also_where_numbers_begin_again(
    node: Node, tcp_peers: Peers
) -> None:
    """A packet that takes the fast path, or is lost at the node, is seen by one of them."""
    conversation = Conversation(node, tcp_peers, True, sent=0xFFFFFF01).open()
    conversation.sent = 2**32 + 5
    node.ingress(conversation.from_backend("A"))
    assert resets(conversation)[address_port(tcp_peers.backend)].sequence == 5


@KINDS
def test_the_packet_is_a_bare_reset_with_valid_checksums(conversation: Conversation) -> None:
    for reset in resets(conversation).values():
        packet = as_packet(reset)
        again = packet.copy()
        del again.payload.chksum
        if packet.version == 4:
            del again.chksum
        assert bytes(packet) == bytes(again.__class__(bytes(again)))
        assert (str(packet.payload.flags), bytes(packet.payload.payload)) == ("R", b"")


@KINDS
def test_all_entries_are_removed(conversation: Conversation) -> None:
    node = conversation.node
    assert len(resets(conversation)) == 2
    assert (node.count("connections"), node.count("new_connections")) == (0, 0)


@KINDS
def test_a_client_that_has_opened_another_connection_from_its_port_keeps_that(
    conversation: Conversation,
) -> None:
    """It has come since the connections were read."""
    before = matching(conversation)
    conversation.node.forward(conversation.reset("client", 0))
    other = replace(conversation.peers, backend=conversation.peers.other_backend)
    Conversation(conversation.node, other, conversation.masquerade).open()
    entries = conversation.node.count("connections")
    assert TcpConnections(conversation.node.pinned).remove(before) == []
    assert conversation.node.count("connections") == entries


@KINDS
def test_connections_to_other_backends_and_of_other_services_are_not_found(
    conversation: Conversation,
) -> None:
    connections = TcpConnections(conversation.node.pinned)
    service, endpoint = departed(conversation)
    other = departed(conversation, conversation.peers.other_backend)
    assert found_to(conversation, {other, (service + 1, endpoint)}) == []
    ((of, _),) = connections.to({service, service + 1}, lambda _: True)
    assert of == (service, endpoint)
    assert connections.to({service + 1}, lambda _: True) == []


def test_a_connection_is_as_old_as_its_first_packet(node: Node, tcp_peers: Peers) -> None:
    before = time.monotonic()
    conversation = Conversation(node, tcp_peers, False).open()
    (connection,) = matching(conversation)
    assert before - CLOCK_TICK <= connection.created <= time.monotonic()


def test_a_pause_is_made_while_the_tables_are_read(node: Node, tcp_peers: Peers) -> None:
    conversation = Conversation(node, tcp_peers, False).open()
    pauses: list[None] = []
    connections = TcpConnections(conversation.node.pinned, lambda: pauses.append(None))
    connections.to({0}, lambda _: True)
    assert len(pauses) == 1


@KINDS
def test_a_connection_that_is_over_is_left_to_the_collector(conversation: Conversation) -> None:
    conversation.node.forward(conversation.reset("client", 0))
    assert matching(conversation) == []


def test_a_half_open_connection_is_forgotten_without_resets(node: Node, tcp_peers: Peers) -> None:
    conversation = Conversation(node, tcp_peers, False)
    tcp_peers.service(node, [tcp_peers.backend])
    node.forward(conversation.from_client("S"))
    assert resets(conversation) == {}
    assert (node.count("connections"), node.held()) == (0, 0)
