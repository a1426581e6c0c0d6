"""Two flows that would become one: the same source port to a frontend and to its backend.

After the destination is rewritten, the backend would see the same 5-tuple for both, and its replies
could not be distinguished. So the second flow must arrive from another source port, invisible to
both sides. Each test keeps both open and sends data on both in turns.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, Protocol, ask
from bpfsvc.devtools.lab.namespace import Namespace
from tests.lab.testbed import ONE, TWIN, WEB, Testbed, at

# Outside of the kernel's local port range: a port of another test may still be in TIME_WAIT.
_ports = itertools.count(61000)
_TCP_REPAIR = 19
DATA = b"echo " + bytes(range(256)) * 4  # for both kinds of server: "send this back"

BACKENDS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


def forget(connected: socket.socket) -> None:
    """Close a TCP socket as if its machine had lost power: the other side learns nothing."""
    connected.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    connected.close()


def challenges(namespace: Namespace) -> int:
    """Return how many challenge ACKs a namespace has sent (RFC 5961)."""
    with namespace.entered():
        lines = Path("/proc/thread-self/net/netstat").read_text().splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(numbers[names.index("TCPChallengeACK")])


class Connections(ExitStack):
    """Connections from one source port, over TCP or connected UDP, that are closed together."""

    def __init__(self, namespace: Namespace, transport: Protocol) -> None:
        super().__init__()
        self.place, self.transport, self.source = namespace, transport, next(_ports)

    def open(self, address: str, number: int) -> OpenConnection:
        """Open one; a connected datagram socket is used like a stream."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        tcp = self.transport == "tcp"
        made = self.place.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
        self.callback(made.close)
        made.settimeout(5)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("", self.source))
        made.connect((address, number))
        return OpenConnection(made)


@pytest.fixture
def connections(testbed: Testbed, transport: Protocol) -> Iterator[Connections]:
    """Connections from the pod."""
    with Connections(testbed.pod, transport) as opened:
        yield opened


def both_flow(opened: OpenConnection, two: OpenConnection) -> bool:
    """True if data comes back on both, in turns."""
    return all(side.echo(DATA) for side in (opened, two) * 3)


@BACKENDS
@pytest.mark.parametrize("first", ["frontend first", "direct first"])
def test_one_port_serves_a_frontend_and_its_backend(
    testbed: Testbed, connections: Connections, family: int, backend: int, first: str
) -> None:
    """A pod's port serves the VIP and, directly, the backend that the VIP chose."""
    pod = testbed.lab.pods[backend]
    targets = [(ONE[backend].vip(family), 80), (pod.address(family), 8080)]
    if first == "direct first":
        targets.reverse()
    older = connections.open(*targets[0])
    before = older.who()
    two = connections.open(*targets[1])
    after = two.who()
    assert both_flow(older, two)
    assert (before.pod, after.pod) == (pod.name, pod.name)
    assert (before.remote, after.remote) == (at(*targets[0]), at(*targets[1]))
    assert before.own == after.own == before.peer
    assert after.peer != after.own  # the second arrives from another port


@BACKENDS
def test_one_port_serves_two_frontends_with_the_same_backend(
    testbed: Testbed, connections: Connections, family: int, backend: int
) -> None:
    """Two VIPs that chose the same backend."""
    vips = (ONE[backend].vip(family), testbed.node.address(family))
    numbers = (80, ONE[backend].node_port)
    if backend == 2:
        vips, numbers = (ONE[2].vip(family), TWIN.vip(family)), (80, 80)
    older = connections.open(vips[0], numbers[0])
    before = older.who()
    two = connections.open(vips[1], numbers[1])
    after = two.who()
    assert both_flow(older, two)
    assert before.pod == after.pod == testbed.lab.pods[backend].name
    assert before.peer != after.peer
    assert (before.remote, after.remote) == (at(vips[0], numbers[0]), at(vips[1], numbers[1]))


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("first", ["frontend first", "direct first"])
def test_leftovers_of_a_closed_connection_translate_nothing(
    testbed: Testbed, connections: Connections, family: int, ending: str, first: str
) -> None:
    """After a connection has ended, its port is used for the other target, and data comes back."""
    pod = testbed.lab.pods[2]
    targets = [(ONE[2].vip(family), 80), (pod.address(family), 8080)]
    if first == "direct first":
        targets.reverse()
    for target in targets * (3 if ending == "reset" else 1):  # TIME_WAIT keeps the pair for a while
        conversation = connections.open(*target)
        answer = conversation.who()
        assert conversation.echo(DATA)
        assert (answer.pod, answer.remote) == (pod.name, at(*target))
        getattr(conversation, ending)()


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_reused_port_gets_a_new_choice_of_backend(
    testbed: Testbed, connections: Connections, family: int
) -> None:
    """A SYN on a closed connection is a new connection: nothing fails, and backends vary."""
    counts: Counter[str] = Counter()
    for _ in range(40):
        conversation = connections.open(WEB.vip(family), 80)
        counts[conversation.who().pod] += 1
        assert conversation.echo(DATA)
        conversation.reset()
    assert len(counts) == len(testbed.lab.pods)


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("who", ["pod", "masqueraded client"])
def test_a_client_that_forgot_its_connection_connects_again_from_its_port(
    testbed: Testbed, connections: Connections, family: int, who: str
) -> None:
    """The backend challenges the SYN, the client resets the old connection, and the SYN comes back.

    The first SYN must reach the backend that knows the old connection: no other would challenge it.
    """
    frontend = ONE[2].vip(family), 80
    if who != "pod":
        connections.place = testbed.client
        frontend = testbed.node.address(family), ONE[2].node_port
    backend = testbed.lab.pods[2]
    before = challenges(backend)
    for _ in range(3):
        opened = connections.open(*frontend)
        assert opened.who().pod == backend.name
        assert opened.echo(DATA)
        forget(opened.socket)
    assert challenges(backend) == before + 2


def test_clients_with_one_port_share_a_masqueraded_backend(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Client, pod and node use the same source port to one backend through the same node."""
    source = next(_ports)
    address, number = testbed.node.address(family), ONE[2].node_port
    with ExitStack() as stack:
        answers = []
        opened = []
        for namespace in (testbed.client, testbed.lab.pods[0], testbed.lab.pods[1]):
            connections = stack.enter_context(Connections(namespace, transport))
            connections.source = source
            opened.append(connections.open(address, number))
            answers.append(opened[-1].who())
        assert all(side.echo(DATA) for side in opened * 3)
        assert len({answer.peer for answer in answers}) == len(answers)


def test_datagrams_of_one_socket_to_frontend_and_backend(testbed: Testbed, family: int) -> None:
    """An unconnected socket sends to the VIP and to its backend: each answers."""
    pod = testbed.lab.pods[2]
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with testbed.pod.socket(kind, socket.SOCK_DGRAM) as sender:
        sender.settimeout(2)
        for target in ((ONE[2].vip(family), 80), (pod.address(family), 8080)) * 3:
            sender.sendto(DATA, target)
            data, remote = sender.recvfrom(1 << 16)
            assert (data, remote[:2]) == (DATA, target)


def test_a_direct_connection_still_works_after_many_through_the_frontend(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Many ports in a row, each to the frontend and to the backend."""
    pod = testbed.lab.pods[2]
    for _ in range(20):
        source = ("", next(_ports))
        for target in ((ONE[2].vip(family), 80), (pod.address(family), 8080)):
            answer = ask(testbed.pod, *target, transport, source=source)
            assert (answer.pod, answer.remote) == (pod.name, at(*target))
