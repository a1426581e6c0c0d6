"""What a socket of the node counts for, from its connect() to its end."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.datapath.maps.backend_loads import read_load
from bpfsvc.datapath.maps.backend_outcomes import QuarantinedMap
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.scheduling.extra import extra_entries
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.node import Node
from tests.packets.node_sockets import attached_cgroup
from tests.packets.packet import address_port
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers, address_of

_CLIENT = """
import socket, sys
group, address, protocol = sys.argv[1:]
open(group + "/cgroup.procs", "w").write("0")
family = socket.AF_INET6 if ":" in address else socket.AF_INET
client = None
for line in sys.stdin:
    if client:
        client.close()
        client = None
    else:
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        client = socket.socket(family, kind)
        client.connect_ex((address, 80))
    print("done", flush=True)
"""


class Client:
    """A socket of the node that connects to a frontend when told so, and ends when told again."""

    def __init__(self, node: Node, peers: Peers, stack: ExitStack) -> None:
        self.node, self.peers = node, peers
        group = attached_cgroup(node, "loads", stack)
        command = [sys.executable, "-c", _CLIENT, str(group), address_of(peers.vip)]
        command.append(peers.protocol)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.enter_context(self._process)

    def program(self, policies: Policies, *backends: str) -> list[int]:
        """Write the Service; return the indices of the backends."""
        number, peers = PROTOCOLS[self.peers.protocol], self.peers
        port = ServicePort("default", "web", "", number, peers.family)
        entries = tuple(Backend(*address_port(text)) for text in backends)
        frontend = Frontend(*address_port(peers.vip), number)
        weights = ((0, (100,)),) if Schedule(policies.schedule).counts else ()
        extra = extra_entries((), weights)
        self.node.program({port: PortEntries(80, entries, {frontend: policies}, extra)})
        known = self.node.applied_state.of(("default", "web"))[port].counters()
        return [known[address_port(text)] for text in backends]

    def goes_on(self) -> None:
        """Have it connect, or end."""
        assert self._process.stdin
        assert self._process.stdout
        print("next", file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_a_connected_socket_of_udp_is_inactive_for_its_backend_until_it_is_closed(
    node: Node, peers: Peers, stack: ExitStack
) -> None:
    client = Client(node, peers, stack)
    policy = Policy(0, 1, masquerade=False, reject=False)
    policies = Policies(policy, policy, policy, schedule=Schedule.LC)
    home = "::1" if peers.family == 6 else "127.0.0.1"
    (counters,) = client.program(policies, peers.with_port(home, 9000))
    record = node.pinned.layout.maps["backend_loads"].value
    for wanted in ((0, 1), (0, 0)):
        client.goes_on()
        raw = node.pinned.map("backend_loads").lookup(struct.pack("=I", counters)) or b""
        assert read_load(raw, record) == (wanted, wanted)


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_a_socket_that_ends_while_it_tries_a_backend_lets_another_one_try(
    node: Node, peers: Peers, stack: ExitStack
) -> None:
    """There is no route to the backend that is on trial."""
    client = Client(node, peers, stack)
    policy = Policy(0, 1, masquerade=False, reject=False, trials=1)
    policies = Policies(policy, policy, policy, watched=True)
    home = "::1" if peers.family == 6 else "127.0.0.1"
    _, sick = client.program(policies, peers.with_port(home, 9000), peers.backend)
    QuarantinedMap(node.pinned).set({sick: None})
    record = node.pinned.layout.maps["quarantined"].value
    for tried in (True, False):
        client.goes_on()
        entry = record.unpack(node.pinned.map("quarantined").lookup(struct.pack("=I", sick)) or b"")
        assert bool(entry["tried"]) == tried
