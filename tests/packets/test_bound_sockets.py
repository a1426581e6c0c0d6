"""Sockets of the node that are bound before they connect to a Service.

The node is a network namespace with a cgroup, and all addresses of pods are its own: the backends
listen there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.datapath.attach import cgroup
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched
from tests.packets.events import Events
from tests.packets.node import POD_RANGES, Node
from tests.packets.node_sockets import attached_cgroup
from tests.packets.packet import address_port
from tests.packets.peers import Peers, address_of
from tests.packets.test_local_listeners import FREEBIND

PAIRS = 12
"""Of sockets: by chance alone, two of some pair have the same backend."""


class Sockets:
    """Makes sockets of the node, and listeners of backends."""

    def __init__(self, node: Node, peers: Peers, stack: ExitStack) -> None:
        self.node, self.peers, self._stack = node, peers, stack
        self._family = socket.AF_INET6 if peers.family == 6 else socket.AF_INET
        group = attached_cgroup(node, "bound", stack)
        self._namespace = Namespace("bound-sockets", cgroup=group / "node")
        stack.callback(self._namespace.close)
        with self._namespace.entered():
            cookie = cgroup.netns_cookie()
        everything = node.pinned.layout.constant("SOCKET_LB_ALL")
        node.settings(socket_lb=everything, netns_cookie=cookie)
        # What sockets of an earlier test have noted.
        node.delete_entries("bound_sockets")
        pods = POD_RANGES[peers.family == 6]
        self._namespace.run(["ip", "route", "add", "local", pods, "dev", "lo"])

    def bound(self, to: str) -> socket.socket:
        """Return a socket that is bound to an ``address:port``, as others may be."""
        made = self._stack.enter_context(self._namespace.socket(self._family))
        made.settimeout(stretched(10))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(*FREEBIND[self.peers.family], 1)
        made.bind((address_of(to), address_port(to)[1]))
        return made

    def listener(self, backend: str) -> socket.socket:
        """Have a backend listen."""
        made = self.bound(backend)
        made.listen()
        return made


@pytest.fixture
def sockets(node: Node, tcp_peers: Peers) -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(node, tcp_peers, stack)


def test_a_bound_socket_reaches_its_backend_and_an_event_tells_its_address(
    sockets: Sockets,
) -> None:
    node, peers = sockets.node, sockets.peers
    backend, client = sockets.listener(peers.backend), sockets.bound(peers.client)
    peers.service(node, [peers.backend])
    events = Events(node)
    try:
        client.connect((address_of(peers.vip), 80))
        made, *_ = events.read()
    finally:
        events.close()
    accepted, source = backend.accept()
    accepted.close()
    assert peers.with_port(*source[:2]) == peers.client
    assert (made["kind"], made["client"], made["backend"]) == ("made", peers.client, peers.backend)


def test_sockets_that_share_a_port_are_connected_to_different_backends_by_two_frontends(
    sockets: Sockets,
) -> None:
    """One backend for both would make the second connect() fail."""
    peers = sockets.peers
    backends = [peers.backend, peers.other_backend]
    listeners = [sockets.listener(backend) for backend in backends]
    peers.service(sockets.node, backends, frontends=[peers.vip, peers.other_vip])
    for port in range(41000, 41000 + PAIRS):
        for vip in (peers.vip, peers.other_vip):
            client = sockets.bound(peers.with_port(peers.client, port))
            client.connect((address_of(vip), 80))
    for listener in listeners:
        ports = set()
        for _ in range(PAIRS):
            accepted, source = listener.accept()
            accepted.close()
            ports.add(source[1])
        assert len(ports) == PAIRS
