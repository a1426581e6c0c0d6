"""Sockets that connect or send more than once: who answers them, and by which name."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.base.address import pack
from bpfsvc.devtools.lab.dial import ask, connect, disconnect, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import make_known, opened
from tests.lab.testbed import FAMILIES, ONE, Named, Testbed, at, built_testbed, objects

ROLLED = Named("rolled", 61)
SHARED = (Named("shared-a", 62), Named("shared-b", 63))
"""Two Services with one backend."""
PAIRS = (Named("pair-a", 64), Named("pair-b", 65))
"""Two Services with the same two backends."""
STICKY, TURNS = Named("sticky", 66), Named("turns", 67)
"""The same backends: clients stay with one, or get them in turn."""
MANY = tuple(Named(f"many-{number}", 100 + number) for number in range(12))
"""More than a socket has room for; all with the same two backends."""

WHERE = ("pod", "node")


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are known to the hooks."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        pods = testbed.lab.pods
        every = [
            *(objects(named, [pod]) for named, pod in zip(ONE, pods, strict=True)),
            *(objects(named, pods[2:3]) for named in SHARED),
            *(objects(pair, pods[2:4]) for pair in PAIRS + MANY),
            objects(STICKY, pods[2:4], sessionAffinity="ClientIP"),
            objects(TURNS, pods[2:4], annotations={"bpfsvc.io/scheduler": "rr"}),
        ]
        testbed.cluster.put("services", *itertools.chain.from_iterable(every))
        testbed.cluster.put("rolled", *objects(ROLLED, pods[1:2]))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


def datagrams(namespace: Namespace, family: int) -> socket.socket:
    made = namespace.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    made.settimeout(stretched(2))
    return made


def answer(made: socket.socket) -> tuple[str, str]:
    """Receive one answer; return the pod that sent it, and the address it comes from."""
    data, sender = made.recvfrom(1 << 16)
    return data.split(b'"')[3].decode(), at(sender[0], sender[1])


def asked(made: socket.socket, to: tuple[str, int]) -> tuple[str, str]:
    made.sendto(b"who\n", to)
    return answer(made)


# -- one socket, several frontends --


@pytest.mark.parametrize("where", WHERE)
def test_answers_of_a_backend_of_two_services_come_from_the_one_that_was_asked(
    known_testbed: Testbed, where: str, family: int
) -> None:
    first_vip, two = (named.vip(family) for named in SHARED)
    with datagrams(getattr(known_testbed, where), family) as made:
        for vip in (first_vip, two, first_vip, first_vip, two):
            assert asked(made, (vip, 80))[1] == at(vip, 80)


def test_a_pods_questions_to_two_services_at_once_are_answered_by_each(
    known_testbed: Testbed, family: int
) -> None:
    """tc changes the source port of one."""
    vips = [named.vip(family) for named in SHARED]
    with datagrams(known_testbed.pod, family) as made:
        for vip in vips:
            made.sendto(b"who\n", (vip, 80))
        assert {answer(made)[1] for _ in vips} == {at(vip, 80) for vip in vips}


@pytest.mark.parametrize("where", WHERE)
def test_answers_of_two_backends_with_one_port_come_from_the_service_of_each(
    known_testbed: Testbed, where: str, family: int
) -> None:
    """Also where both are asked at once."""
    vips, pods = [named.vip(family) for named in ONE[2:]], known_testbed.lab.pods[2:]
    with datagrams(getattr(known_testbed, where), family) as made:
        for vip in vips:
            made.sendto(b"who\n", (vip, 80))
        assert {answer(made) for _ in vips} == {
            (pod.name, at(vip, 80)) for pod, vip in zip(pods, vips, strict=True)
        }


@pytest.mark.parametrize("where", WHERE)
def test_answers_of_a_backend_that_is_asked_directly_come_from_itself(
    known_testbed: Testbed, where: str, family: int
) -> None:
    backend, vip = (known_testbed.lab.pods[2].address(family), 8080), (SHARED[0].vip(family), 80)
    with datagrams(getattr(known_testbed, where), family) as made:
        for to in (vip, backend, vip, backend, backend, vip):
            assert asked(made, to)[1] == at(*to)


@pytest.mark.parametrize("where", WHERE)
def test_a_socket_that_sends_to_many_services_keeps_a_backend_of_each(
    known_testbed: Testbed, where: str, family: int
) -> None:
    vips = [named.vip(family) for named in MANY]
    with datagrams(getattr(known_testbed, where), family) as made:
        rounds = [[asked(made, (vip, 80)) for vip in vips] for _ in range(4)]
    assert [[sender for _, sender in round] for round in rounds] == [[at(v, 80) for v in vips]] * 4
    assert rounds[1:] == rounds[:1] * 3


# -- sockets that are connected anew --


def test_a_socket_that_connects_elsewhere_is_not_closed_with_its_old_service(
    known_testbed: Testbed,
) -> None:
    pods = known_testbed.lab.pods
    roll(known_testbed, pods[1])
    with ExitStack() as both:
        moved, disconnected = (
            both.enter_context(datagrams(known_testbed.node, 4)) for _ in range(2)
        )
        for made in (moved, disconnected):
            made.connect((ROLLED.vip(4), 80))
            assert tell(made) == pods[1].name
        moved.connect((pods[2].address(4), 8080))
        assert moved.getpeername() == (pods[2].address(4), 8080)
        moved.connect((pods[1].address(4), 8080))
        assert moved.getpeername() == (pods[1].address(4), 8080)
        disconnect(disconnected)
        roll(known_testbed, pods[3])
        assert set(tally(known_testbed.node, ROLLED.vip(4), 80, "udp", count=4)) == {pods[3].name}
        assert tell(moved) == pods[1].name
        assert asked(disconnected, (pods[1].address(4), 8080))[0] == pods[1].name


def roll(testbed: Testbed, *pods: LabPod) -> None:
    testbed.cluster.apply("rolled", *objects(ROLLED, pods))


def tell(made: socket.socket) -> str:
    """Ask by a connected socket; return the pod that answers."""
    made.send(b"who\n")
    return answer(made)[0]


# -- TCP --


def test_a_bound_port_of_the_node_reaches_two_services_with_the_same_backends(
    known_testbed: Testbed, family: int
) -> None:
    """As a port and a backend can be connected once, the second gets the other backend."""
    for port in range(41000, 41008):
        source = ("", port)
        one, two = (pair.vip(family) for pair in PAIRS)
        with (
            connect(known_testbed.node, one, 80, source=source) as first,
            connect(known_testbed.node, two, 80, source=source) as second,
        ):
            assert {first.who().pod, second.who().pod} == {
                pod.name for pod in known_testbed.lab.pods[2:4]
            }


@pytest.mark.parametrize("where", ["at the node's address", "at loopback", "at 127.1.2.3"])
def test_a_bound_port_reaches_two_node_ports_with_the_same_backends(
    known_testbed: Testbed, where: str
) -> None:
    """Loopback has node ports of IPv4 only."""
    node = known_testbed.node
    addresses, first = [node.address(family) for family in FAMILIES], 41100
    if where == "at loopback":
        addresses, first = ["127.0.0.1"], 41300
    elif where == "at 127.1.2.3":
        addresses, first = ["127.1.2.3"], 9300
    for port, address in itertools.product(range(first, first + 8), addresses):
        pods = {pod.name for pod in known_testbed.lab.pods[2:4]}
        with ExitStack() as opened_all:
            for pair in PAIRS:
                made = connect(node, address, pair.node_port, source=("", port))
                pods.remove(opened_all.enter_context(made).who().pod)
        assert pods == set()


def pod_unless_connected(testbed: Testbed, named: Named, family: int, port: int) -> str:
    """Return the pod that a port of the node reaches; empty if it is connected to that already."""
    try:
        with connect(testbed.node, named.vip(family), 80, source=("", port)) as made:
            return made.who().pod
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return ""


@pytest.mark.parametrize("second", [STICKY, TURNS], ids=["session affinity", "a scheduler"])
def test_a_bound_port_changes_no_choice_that_was_not_at_random(
    known_testbed: Testbed, second: Named, family: int
) -> None:
    """If the port is connected to the chosen backend already, the kernel tells that."""
    node = known_testbed.node
    with connect(node, STICKY.vip(family), 80) as made:
        kept = made.who().pod
    failures = set()
    for port in range(41200, 41216):
        with connect(node, PAIRS[0].vip(family), 80, source=("", port)) as first:
            taken = first.who().pod
            pod = pod_unless_connected(known_testbed, second, family, port)
        assert pod != taken
        if not pod:
            failures.add(taken)
        elif second is STICKY:
            assert pod == kept
    assert failures
    assert second is TURNS or failures == {kept}


@pytest.mark.parametrize("where", WHERE)
def test_an_mptcp_socket_is_connected_to_the_service_in_its_own_view(
    known_testbed: Testbed, where: str, family: int
) -> None:
    namespace: Namespace = getattr(known_testbed, where)
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with namespace.socket(domain, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as made:
        made.settimeout(stretched(2))
        made.connect((ONE[2].vip(family), 80))
        assert made.getpeername()[:2] == (ONE[2].vip(family), 80)
        made.sendall(b"who\n")
        assert known_testbed.lab.pods[2].name.encode() in made.recv(1 << 16)


# -- listeners of the node at a cluster IP --


def can_be_bound(namespace: Namespace, address: str) -> bool:
    """True if sockets may have an IPv6 address, which a work queue of the kernel allows."""
    with namespace.socket(socket.AF_INET6) as made:
        try:
            made.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
        return True


@pytest.fixture
def held(known_testbed: Testbed) -> Iterator[Testbed]:
    """A lab whose first node has the cluster IPs of ONE[3] on an interface, as NodeLocal DNSCache.

    An agent follows such addresses.
    """
    node = known_testbed.node
    addresses = [f"{ONE[3].vip(4)}/32", f"{ONE[3].vip(6)}/128"]
    for address in addresses:
        node.run(["ip", "address", "add", address, "dev", "lo"])
    with opened(node) as pinned:
        known = pinned.map("node_addresses")
        keys = [pack(ONE[3].vip(family)) for family in (4, 6)]
        wait(lambda: all(map(known.lookup, keys)), "the agent knows the addresses")
    wait(lambda: can_be_bound(node, ONE[3].vip(6)), "the node's sockets may have the address")
    yield known_testbed
    for address in addresses:
        node.run(["ip", "address", "delete", address, "dev", "lo"])


@pytest.mark.parametrize("where", WHERE)
def test_a_listener_of_the_node_at_a_cluster_ip_wins_over_the_service(
    held: Testbed, where: str, family: int
) -> None:
    vip, backend = ONE[3].vip(family), held.lab.pods[3].name
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    namespace: Namespace = getattr(held, where)
    assert ask(namespace, vip, 80, "udp").pod == backend
    with held.node.socket(domain, socket.SOCK_DGRAM) as cache, datagrams(namespace, family) as made:
        cache.settimeout(stretched(2))
        cache.bind((vip, 80))

        def reaches_cache() -> bool:
            made.sendto(b"question", (vip, 80))
            try:
                question, client = cache.recvfrom(100)
            except TimeoutError:
                return False
            cache.sendto(question, client)
            data, sender = made.recvfrom(1 << 16)
            return (data, sender[:2]) == (b"question", (vip, 80))

        wait(reaches_cache, "the listener is found")
    assert ask(namespace, vip, 80, "udp", connected=False).pod == backend


@pytest.mark.parametrize("where", WHERE)
def test_a_listener_at_all_addresses_of_the_node_does_not(
    held: Testbed, where: str, family: int
) -> None:
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with held.node.socket(domain) as everywhere:
        everywhere.bind(("", 80))
        everywhere.listen()
        answered = ask(getattr(held, where), ONE[3].vip(family), 80)
    assert answered.pod == held.lab.pods[3].name


@pytest.mark.parametrize("where", WHERE)
def test_a_tcp_listener_of_the_node_wins_too(held: Testbed, where: str, family: int) -> None:
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    vip = ONE[3].vip(family)
    namespace: Namespace = getattr(held, where)
    with held.node.socket(domain) as cache, namespace.socket(domain) as made:
        cache.settimeout(stretched(2))
        cache.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        cache.bind((vip, 80))
        cache.listen()
        made.settimeout(stretched(2))
        made.connect((vip, 80))
        accepted, peer = cache.accept()
        with accepted:
            assert peer[:2] == made.getsockname()[:2]
            accepted.sendall(b"cached")
            assert made.recv(100) == b"cached"
