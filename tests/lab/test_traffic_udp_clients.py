"""UDP clients whose Services and backends change: which get another backend, and which must not.

A client asks again and again from one socket, connected or not, of a pod, of the node or of the
world outside. ``OLD`` serves at first, on this node; ``NEW`` on another.
"""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import connect, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, make_known
from tests.lab.testbed import ONE, Named, Testbed, at, built_testbed, host, objects

ROLLED = Named("rolled", 61)
TWIN = Named("twin", 62)
FAR = Named("far", 63)
FIRST, SECOND = Named("claim-a", 64), Named("claim-b", 65)
SHARED = "198.51.100.61"
FEW, MANY = 6, 70_000

CLIENTS = ("pod", "node", "client")
OURS = ("pod", "node")
"""Clients whose sockets the hooks translate."""


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are known to the hooks; ``OLD`` serves TWIN, too."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        every = [
            objects(ROLLED, [old(testbed)]),
            objects(FAR, [new(testbed)], externalTrafficPolicy="Local"),
            *(objects(ONE[number], [testbed.lab.pods[number]]) for number in (0, 2)),
        ]
        testbed.cluster.put("services", *(each for made in every[1:] for each in made))
        testbed.cluster.put("rolled", *every[0])
        testbed.cluster.put("twin", *objects(TWIN, [old(testbed)]))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


def old(testbed: Testbed) -> LabPod:
    return testbed.lab.pods[1]


def new(testbed: Testbed) -> LabPod:
    return testbed.lab.pods[3]


def roll(testbed: Testbed, *pods: LabPod, **spec: Any) -> None:
    testbed.cluster.apply("rolled", *objects(ROLLED, pods, **spec))


class UdpClient:
    """A UDP socket and its destination."""

    def __init__(
        self, testbed: Testbed, where: str, *, connected: bool, to: tuple[str, int] | None = None
    ) -> None:
        namespace: Namespace = getattr(testbed, where)
        self.socket = namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(stretched(0.5))
        usual = (ROLLED.vip(4), 80)
        if where == "client":
            usual = (testbed.node.address(4), ROLLED.node_port)
        self._to = to or usual
        self._connected = connected
        if connected:
            try:
                self.socket.connect(self._to)
            except OSError:
                self.socket.close()
                raise

    def __enter__(self) -> UdpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answer(self) -> tuple[str, str]:
        """Send a question; return the pod that answers, and the client address it saw."""
        if self._connected:
            self.socket.send(b"who\n")
        else:
            self.socket.sendto(b"who\n", self._to)
        said = json.loads(self.socket.recv(1 << 16))
        return said["pod"], said["peer"]

    def who(self) -> str:
        """Send a question; return the pod that answers, "no answer", or "closed" for the socket."""
        try:
            return self.answer()[0]
        except TimeoutError:
            return "no answer"
        except OSError:
            return "closed"


def client_of(
    testbed: Testbed, where: str, wanted: LabPod, *, connected: bool = False
) -> UdpClient:
    """Return a socket whose backend is ``wanted``."""
    for _ in range(60):
        made = UdpClient(testbed, where, connected=connected)
        if made.who() == wanted.name:
            return made
        made.socket.close()
    raise AssertionError(f"{wanted.name} is never chosen")


# -- service ports that are not the same as before --


def renamed(made: Sequence[Object]) -> list[Object]:
    """Return a Service and its slices with another name for the UDP port."""
    found: list[Object] = copy.deepcopy(list(made))
    for port in (
        *found[0]["spec"]["ports"],
        *(port for entry in found[1:] for port in entry["ports"]),
    ):
        if port["protocol"] == "UDP":
            port["name"] = "anew"
    return found


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_clients_of_a_renamed_port_get_its_new_backend(
    known_testbed: Testbed, where: str, connected: bool
) -> None:
    """As an upgrade of a Helm chart does, together with a rollout."""
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, where, old(known_testbed), connected=connected) as client:
        known_testbed.cluster.apply(
            "rolled", *renamed(objects(ROLLED, [old(known_testbed), new(known_testbed)]))
        )
        known_testbed.cluster.apply("rolled", *renamed(objects(ROLLED, [new(known_testbed)])))
        _wait_for_new_backend(client, known_testbed)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_clients_of_a_service_that_is_made_again_get_its_new_backend(
    known_testbed: Testbed, where: str, connected: bool
) -> None:
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, where, old(known_testbed), connected=connected) as client:
        known_testbed.cluster.drop("rolled")
        known_testbed.cluster.settle()
        service, *slices = objects(ROLLED, [new(known_testbed)])
        known_testbed.cluster.apply(
            "rolled", service
        )  # endpoints come later, as from an API server
        known_testbed.cluster.apply("rolled", service, *slices)
        _wait_for_new_backend(client, known_testbed)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", OURS)
def test_clients_of_an_address_that_another_service_takes_over_get_its_backend(
    known_testbed: Testbed, where: str, connected: bool
) -> None:
    """Both claim it all the time; the one that has it is deleted."""
    known_testbed.cluster.apply(
        "first", *objects(FIRST, [old(known_testbed)], externalIPs=[SHARED])
    )
    known_testbed.cluster.apply(
        "second", *objects(SECOND, [new(known_testbed)], externalIPs=[SHARED])
    )
    with UdpClient(known_testbed, where, connected=connected, to=(SHARED, 80)) as client:
        assert client.who() == old(known_testbed).name
        known_testbed.cluster.drop("first")
        known_testbed.cluster.settle()
        _wait_for_new_backend(client, known_testbed)
    known_testbed.cluster.drop("second")
    known_testbed.cluster.settle()


def test_a_backend_that_still_serves_keeps_the_clients_of_a_renamed_port(
    known_testbed: Testbed,
) -> None:
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, "pod", old(known_testbed), connected=True) as client:
        peers = {client.answer()[1]}
        known_testbed.cluster.apply(
            "rolled", *renamed(objects(ROLLED, [old(known_testbed), new(known_testbed)]))
        )
        answers = {client.answer() for _ in range(FEW)}
    assert answers == {(old(known_testbed).name, *peers)}


def _wait_for_new_backend(client: UdpClient, testbed: Testbed) -> None:
    """Wait until a client has the new backend.

    Entries are written first; clients follow a moment later. An answer of that moment may be lost.
    """
    wanted = new(testbed).name
    wait(lambda: client.who() == wanted, f"{wanted} for the client", timeout=5)


# -- a Service that is scaled to zero --


def _is_refused(testbed: Testbed, where: str) -> bool:
    """True if a new client gets an error at once."""
    try:
        with UdpClient(testbed, where, connected=True) as client:
            return client.who() == "closed"
    except OSError:
        return True


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_clients_of_a_service_that_is_scaled_to_zero_get_its_next_backend(
    known_testbed: Testbed, where: str, connected: bool
) -> None:
    """Without an endpoint new clients are refused; old flows stay, as with kube-proxy."""
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, where, old(known_testbed), connected=connected) as client:
        roll(known_testbed)
        wait(lambda: _is_refused(known_testbed, where), "a new client is refused", timeout=5)
        assert client.who() in (old(known_testbed).name, "closed")
        roll(known_testbed, new(known_testbed))
        _wait_for_new_backend(client, known_testbed)
        with UdpClient(known_testbed, where, connected=True) as later:
            assert later.who() == new(known_testbed).name


# -- what happened while no agent ran --


@pytest.mark.parametrize("where", OURS)
def test_a_socket_gets_a_new_backend_after_a_change_without_an_agent(
    known_testbed: Testbed, where: str
) -> None:
    """Also if its backend still serves another Service."""
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, where, old(known_testbed)) as client:
        known_testbed.cluster.stop(known_testbed.node)
        known_testbed.cluster.put("rolled", *objects(ROLLED, [new(known_testbed)]))
        known_testbed.cluster.start(known_testbed.node)
        known_testbed.cluster.settle()
        assert client.who() == new(known_testbed).name


def test_a_connected_socket_of_the_node_is_moved_after_a_change_without_an_agent(
    known_testbed: Testbed,
) -> None:
    roll(known_testbed, old(known_testbed))
    with (
        client_of(known_testbed, "node", old(known_testbed), connected=True) as client,
        UdpClient(known_testbed, "node", connected=True) as other,
    ):
        other.socket.connect((TWIN.vip(4), 80))
        known_testbed.cluster.stop(known_testbed.node)
        known_testbed.cluster.put("rolled", *objects(ROLLED, [new(known_testbed)]))
        known_testbed.cluster.start(known_testbed.node)
        known_testbed.cluster.settle()
        assert client.who() == new(known_testbed).name
        assert other.who() == old(known_testbed).name


def test_a_restart_leaves_sockets_with_their_backends(known_testbed: Testbed) -> None:
    roll(known_testbed, old(known_testbed), new(known_testbed))
    with (
        client_of(known_testbed, "node", new(known_testbed), connected=True) as connected,
        client_of(known_testbed, "node", new(known_testbed)) as node,
        client_of(known_testbed, "pod", new(known_testbed)) as pod,
    ):
        known_testbed.cluster.stop(known_testbed.node)
        known_testbed.cluster.start(known_testbed.node)
        known_testbed.cluster.settle()
        for client in (connected, node, pod):
            assert {client.who() for _ in range(FEW)} == {new(known_testbed).name}


# -- connected sockets of the node --


@pytest.mark.parametrize("domain", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "mapped"])
def test_a_connected_socket_of_the_node_keeps_its_port_when_it_gets_a_new_backend(
    known_testbed: Testbed, domain: int
) -> None:
    """Its owner notices nothing, as with kube-proxy."""
    vip = ROLLED.vip(4) if domain == socket.AF_INET else f"::ffff:{ROLLED.vip(4)}"
    roll(known_testbed, old(known_testbed))
    with known_testbed.node.socket(domain, socket.SOCK_DGRAM) as made:
        made.settimeout(stretched(2))
        made.connect((vip, 80))
        before = made.getsockname()[1]
        for pod in (old(known_testbed), new(known_testbed), old(known_testbed)):
            roll(known_testbed, pod)
            made.send(b"who\n")
            assert json.loads(made.recv(1 << 16))["pod"] == pod.name
            assert made.getsockname()[1] == before
            assert made.getpeername()[:2] == (vip, 80)


# -- many other sockets --


def test_a_connected_socket_keeps_its_entry_when_many_others_follow(known_testbed: Testbed) -> None:
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, "node", old(known_testbed), connected=True) as client:
        for _ in range(0, MANY, 100):
            for socket_ in known_testbed.node.sockets(100, socket.AF_INET, socket.SOCK_DGRAM):
                with socket_:
                    socket_.connect((ONE[0].vip(4), 80))
        roll(known_testbed, new(known_testbed))
        assert set(tally(known_testbed.node, ROLLED.vip(4), 80, "udp", count=FEW)) == {
            new(known_testbed).name
        }
        assert client.who() == new(known_testbed).name


# -- backends that serve only their existing clients --


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_a_draining_backend_that_serves_keeps_its_clients(
    known_testbed: Testbed, where: str, connected: bool
) -> None:
    """Under kube-proxy, flows in conntrack stay with it, too; new clients get other backends.

    It is no eligible endpoint of any Service then, so no other entry shows that it serves.
    """
    known_testbed.cluster.apply("twin", *objects(TWIN, [new(known_testbed)]))
    roll(known_testbed, old(known_testbed))
    with client_of(known_testbed, where, old(known_testbed), connected=connected) as client:
        made = objects(ROLLED, [old(known_testbed), new(known_testbed)])
        for point in (point for each in made[1:] for point in each["endpoints"]):
            if (
                old(known_testbed).address(4) in point["addresses"]
                or old(known_testbed).address(6) in point["addresses"]
            ):
                point["conditions"] = {"ready": False, "serving": True, "terminating": True}
        known_testbed.cluster.apply("rolled", *made)
        assert {client.who() for _ in range(FEW)} == {old(known_testbed).name}
        with UdpClient(known_testbed, where, connected=connected) as later:
            assert later.who() == new(known_testbed).name
    known_testbed.cluster.apply("twin", *objects(TWIN, [old(known_testbed)]))


@pytest.mark.parametrize("where", OURS)
def test_a_backend_that_returns_keeps_the_clients_that_it_gets_then(
    known_testbed: Testbed, where: str
) -> None:
    roll(known_testbed, old(known_testbed), new(known_testbed))
    roll(known_testbed, new(known_testbed))
    roll(known_testbed, old(known_testbed), new(known_testbed))
    with client_of(known_testbed, where, old(known_testbed)) as client:
        assert {client.who() for _ in range(FEW)} == {old(known_testbed).name}


def test_the_only_eligible_backend_that_returns_sees_one_port_of_a_client(
    known_testbed: Testbed,
) -> None:
    """More datagrams than a socket has room for translations."""
    local = {"internalTrafficPolicy": "Local"}
    for pods in (
        [old(known_testbed), new(known_testbed)],
        [new(known_testbed)],
        [old(known_testbed), new(known_testbed)],
    ):
        roll(known_testbed, *pods, **local)
    with UdpClient(known_testbed, "pod", connected=False) as client:
        assert len({client.answer() for _ in range(20)}) == 1
        own = at(known_testbed.pod.address(4), client.socket.getsockname()[1])
        assert not by_packets(known_testbed.node, own)


# -- calls that only tc can translate --


@pytest.mark.parametrize("where", ["pod"])
def test_one_port_of_a_client_reaches_one_backend_by_two_services(
    known_testbed: Testbed, where: str
) -> None:
    roll(known_testbed, old(known_testbed))
    source = (known_testbed.pod.address(4), 41234)
    namespace = getattr(known_testbed, where)
    with connect(namespace, ROLLED.vip(4), 80, source=source) as opened:
        assert opened.who().pod == old(known_testbed).name
        with connect(namespace, TWIN.vip(4), 80, source=source) as two:
            seen = two.who()
            assert seen.pod == old(known_testbed).name
            assert host(seen.peer) == known_testbed.pod.address(4)


@pytest.mark.parametrize(("where", "to"), [("pod", "0.0.0.0"), ("pod", "::"), ("node", "::")])
def test_the_unspecified_address_is_loopback_and_no_node_port_address(
    known_testbed: Testbed, where: str, to: str
) -> None:
    """NodePorts answer at the node's 127.0.0.1, if configured, and never at ::1."""
    namespace = getattr(known_testbed, where)
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with namespace.socket(family) as own, namespace.socket(family) as client:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("::1" if ":" in to else "127.0.0.1", FAR.node_port))
        own.listen()
        client.settimeout(2)
        client.connect((to, FAR.node_port))
        accepted, _ = own.accept()
        with accepted:
            assert accepted.getpeername()[:2] == client.getsockname()[:2]
