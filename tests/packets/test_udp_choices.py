"""How long a UDP socket of the node keeps the backend that was chosen for its first datagram.

The agent says which endpoints serve (``udp_serving``). Until it has said so of a new one, the
socket keeps it for two seconds, if it is an endpoint at all.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab.patience import stretched
from tests.packets.node import Node
from tests.packets.node_sockets import attached_cgroup
from tests.packets.packet import address_port
from tests.packets.peers import UDP_PEERS, Peers, address_of

FRESH = 2
"""CHOICE_FRESH_SECONDS."""
ROOM = 8
"""SOCKET_TRANSLATIONS."""

_CLIENT = """
import socket, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
made = socket.socket(int(sys.argv[2]), socket.SOCK_DGRAM)
socket.send_fds(socket.socket(fileno=int(sys.argv[3])), [b"here"], [made.fileno()])
"""
"""A process whose sockets the programs serve; it hands one over, which they go on to serve."""


def served_socket(family: int, node: Node, stack: ExitStack) -> socket.socket:
    """Return a UDP socket that the programs serve, until the stack ends."""
    group = attached_cgroup(node, "choices", stack)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", _CLIENT, str(group), str(family), str(theirs.fileno())]
        subprocess.run(command, pass_fds=[theirs.fileno()], check=True, timeout=stretched(10))
        _, (made,), *_ = socket.recv_fds(ours, 10, 1)
    return stack.enter_context(socket.socket(fileno=made))


class Client:
    """A socket of the node that sends to a frontend, and two backends that receive."""

    def __init__(self, node: Node, peers: Peers, stack: ExitStack) -> None:
        self.node, self.peers = node, peers
        home = "::1" if peers.family == 6 else "127.0.0.1"
        family = socket.AF_INET6 if peers.family == 6 else socket.AF_INET
        self._ends: dict[str, socket.socket] = {}
        for _ in range(2):
            end = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            end.bind((home, 0))
            self._ends[peers.with_port(home, end.getsockname()[1])] = end
        self.backends = list(self._ends)
        self._socket = served_socket(family, node, stack)

    def reached(self, port: int = 80) -> str:
        """Send a datagram to a port of the frontend; return the backend that gets it."""
        self._socket.sendto(b"question", (address_of(self.peers.vip), port))
        deadline = time.monotonic() + stretched(10)
        while time.monotonic() < deadline:
            for name, end in self._ends.items():
                end.settimeout(0.02)
                try:
                    assert end.recv(100) == b"question"
                except TimeoutError:
                    continue
                return name
        raise TimeoutError("no backend got it")

    def age(self, seconds: float) -> None:
        """Set the time of the socket's choice to so many seconds ago."""
        chosen = time.monotonic_ns() - int(seconds * 1e9)
        layout, known = self.node.pinned.layout, self.node.pinned.map("socket_translations")
        key = struct.pack("=i", self._socket.fileno())
        rows = bytearray(known.lookup(key) or b"")
        # The first row has the layout of these values.
        (at,) = layout.maps["socket_overflow"].value.offsets("chosen").values()
        struct.pack_into("=Q", rows, at, chosen)
        known.update(key, bytes(rows))

    def connects_to(self, backend: str) -> str:
        """Connect to a backend by its own address; return the name of the peer."""
        self._socket.connect((address_of(backend), address_port(backend)[1]))
        return self.peers.with_port(*self._socket.getpeername()[:2])

    def serve(self, backend: str, *others: str) -> None:
        """Have new choices be of one backend; ``others`` are endpoints of another Service."""
        self.peers.service(self.node, [backend])
        self.peers.service(self.node, others, "other", frontends=[self.peers.other_vip])


@pytest.fixture(params=UDP_PEERS, ids=str)
def client(request: pytest.FixtureRequest, node: Node) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(node, request.param, stack)


def test_a_fresh_choice_of_an_endpoint_is_kept(client: Client) -> None:
    """At an age of more than half of the time, too; the machine may be slow."""
    first, second = client.backends
    client.serve(first)
    assert client.reached() == first
    client.serve(second, first)
    begun = time.monotonic()
    client.age(0.55 * FRESH)
    assert client.reached() == first or time.monotonic() - begun > 0.45 * FRESH
    client.age(FRESH + 0.1)
    assert client.reached() == second


def test_a_choice_of_what_is_no_endpoint_any_more_is_not_kept(client: Client) -> None:
    first, second = client.backends
    client.serve(first)
    assert client.reached() == first
    client.serve(second)
    assert client.reached() == second


def test_a_socket_that_connects_has_forgotten_all_frontends_that_it_has_asked(
    client: Client,
) -> None:
    """That one, too, for which it had no room of its own."""
    backend, *_ = client.backends
    ports = range(80, 80 + ROOM + 1)
    frontends = [client.peers.with_port(client.peers.vip, port) for port in ports]
    client.peers.service(client.node, [backend], frontends=frontends)
    assert {client.reached(port) for port in ports} == {backend}
    assert client.connects_to(backend) == backend
