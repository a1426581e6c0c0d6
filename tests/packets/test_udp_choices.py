"""How long a UDP socket of the node keeps the backend that was chosen for its first datagram.

The agent says which endpoints serve (``udp_serving``). Until it has said so of a new one, the
socket keeps it for two seconds, if it is an endpoint at all.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab.patience import stretched, wait
from tests.packets.node import Node
from tests.packets.node_sockets import attached_cgroup
from tests.packets.peers import UDP_PEERS, Peers, address_of

FRESH = 2
"""CHOICE_FRESH_SECONDS."""

_CLIENT = """
import socket, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
client = socket.socket(family, socket.SOCK_DGRAM)
for line in sys.stdin:
    client.sendto(b"question", (sys.argv[2], 80))
"""


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
        group = attached_cgroup(node, "choices", stack)
        command = [sys.executable, "-c", _CLIENT, str(group), address_of(peers.vip)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        stack.callback(self._end)

    def _end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait(stretched(10)) == 0

    def reached(self) -> str:
        """Send a datagram; return the backend that gets it."""
        assert self._process.stdin
        print("send", file=self._process.stdin, flush=True)
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

    def serve(self, backend: str, *others: str) -> None:
        """Have new choices be of one backend; ``others`` are endpoints of another Service."""
        self.peers.service(self.node, [backend])
        self.peers.service(self.node, others, "other", frontends=[self.peers.other_vip])


@pytest.fixture(params=UDP_PEERS, ids=str)
def client(request: pytest.FixtureRequest, node: Node) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(node, request.param, stack)


def test_a_fresh_choice_of_an_endpoint_is_kept(client: Client) -> None:
    first, second = client.backends
    client.serve(first)
    begun = time.monotonic()
    assert client.reached() == first
    client.serve(second, first)
    assert client.reached() == first or time.monotonic() - begun > FRESH
    wait(lambda: client.reached() == second, "the choice is fresh no longer")


def test_a_choice_of_what_is_no_endpoint_any_more_is_not_kept(client: Client) -> None:
    first, second = client.backends
    client.serve(first)
    assert client.reached() == first
    client.serve(second)
    assert client.reached() == second
