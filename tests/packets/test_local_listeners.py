"""A listener of the node at the address of a Service wins over the Service (NodeLocal DNSCache)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers, address_of

FREEBIND = {4: (socket.IPPROTO_IP, 15), 6: (socket.IPPROTO_IPV6, 78)}
"""IPFREEBIND, IPV6FREEBIND: the address need not be one of an interface."""


@contextmanager
def listener(peers: Peers, address: str, port: int) -> Iterator[None]:
    """Have a socket of this network namespace wait at an address."""
    family = socket.AF_INET if peers.family == 4 else socket.AF_INET6
    tcp = peers.protocol == "TCP"
    with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as made:
        made.setsockopt(*FREEBIND[peers.family], 1)
        made.bind((address, port))
        if tcp:
            made.listen()
        yield


LIKE_IPV4 = {"first half": "[::a:b:c:10]:80", "second quarter": "[0:0:fd96::10]:80"}
"""Addresses that the programs write nearly as they write IPv4 addresses."""

PEERS = {
    **{str(peers): peers for peers in TCP_PEERS + UDP_PEERS},
    **{f"TCP/IPv6, {name}": replace(TCP_PEERS[1], vip=vip) for name, vip in LIKE_IPV4.items()},
}


@pytest.mark.parametrize("peers", PEERS.values(), ids=PEERS)
def test_a_listener_at_the_address_of_a_service_gets_its_packets(node: Node, peers: Peers) -> None:
    """Not one at all addresses or at another one, or where the node does not have the address."""
    client, vip, backend = peers.served(node, outside=True, guarded=True)
    sent, translated = (peers.opening(client, to) for to in (vip, backend))
    address, port = address_of(vip), sent.dport
    with listener(peers, address, port):
        assert same(node.ingress(sent), translated)
    node.reset()
    peers.served(node, guarded=True)
    node.node_address(address, nodeports=False)
    with listener(peers, address, port):
        assert same(node.ingress(sent), sent)
    anywhere = "::" if peers.family == 6 else "0.0.0.0"
    for other in (address_of(peers.other_vip), anywhere):
        with listener(peers, other, port):
            assert same(node.ingress(sent), translated)
            node.pinned.map("connections").replace({})


@pytest.mark.parametrize("similar", ["fd97::10", "fd96:0:1::10"])
def test_a_listener_at_a_similar_address_does_not(node: Node, similar: str) -> None:
    peers = TCP_PEERS[1]
    client, vip, backend = peers.served(node, guarded=True)
    node.node_address(address_of(vip), nodeports=False)
    with listener(peers, similar, 80):
        out = node.ingress(peers.opening(client, vip))
    assert same(out, peers.opening(client, backend))
