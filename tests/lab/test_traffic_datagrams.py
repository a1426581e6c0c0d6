"""Datagrams of sockets that remember many frontends, or whose entries are half gone.

``bpf/maps/socket_storage.h`` has eight rows for each socket, and what finds no room there is in
``bpf/maps/socket_overflow.h``, from which the kernel evicts.
"""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bpfsvc.base.address import pack
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import Object, port, service, slices
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, make_known, opened
from tests.lab.test_traffic_node_sockets import SHARED, WHERE, asked, datagrams
from tests.lab.test_traffic_peer_names import cookie
from tests.lab.testbed import FAMILIES, ONE, Named, Testbed, at, built_testbed, objects

PORTS = Named("ports", 70)
"""A Service with more UDP ports than a socket has rows; each port has a backend of its own."""
NUMBERS = range(8001, 8012)
ROWS = 8
FRESH_SECONDS = 2
"""For so long a choice is trusted although nothing says that its backend serves."""


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are known to the hooks."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        pods = testbed.lab.pods
        every = [
            *(objects(named, [pod]) for named, pod in zip(ONE, pods, strict=True)),
            *(objects(named, pods[2:3]) for named in SHARED),
            of_ports(backend(testbed)),
        ]
        testbed.cluster.put("services", *itertools.chain.from_iterable(every))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


def backend(testbed: Testbed) -> LabPod:
    return testbed.lab.pods[2]


def of_ports(pod: LabPod) -> list[Object]:
    ports = [port(number, f"p{number}", "UDP") for number in NUMBERS]
    targets = [port(number + 1000, f"p{number}", "UDP") for number in NUMBERS]
    vips = [PORTS.vip(family) for family in FAMILIES]
    return [service(PORTS.name, vips, ports), *slices(PORTS.name, [pod], targets)]


@pytest.fixture
def servers(known_testbed: Testbed, family: int) -> Iterator[dict[int, socket.socket]]:
    """The backends of that Service, by the port of the Service."""
    with ExitStack() as stack:
        made = {}
        for number in NUMBERS:
            made[number] = stack.enter_context(datagrams(backend(known_testbed), family))
            made[number].bind(("", number + 1000))
        yield made


def answered(made: socket.socket, server: socket.socket, to: tuple[str, int]) -> str:
    """Send a question that a server answers; return where the answer comes from."""
    made.sendto(b"question", to)
    _, client = server.recvfrom(100)
    server.sendto(b"answer", client)
    data, sender = made.recvfrom(100)
    assert data == b"answer"
    return at(*sender[:2])


# -- many frontends --


def test_answers_come_from_each_of_more_frontends_than_a_socket_has_room_for(
    known_testbed: Testbed, servers: dict[int, socket.socket], family: int
) -> None:
    """Each has another backend: some are in the socket's own rows only, others elsewhere only."""
    vip = PORTS.vip(family)
    with datagrams(known_testbed.node, family) as made:
        for number, server in [*servers.items()] * 2:
            assert answered(made, server, (vip, number)) == at(vip, number)


def test_a_socket_of_a_pod_is_left_to_tc_when_its_rows_are_full(
    known_testbed: Testbed, servers: dict[int, socket.socket], family: int
) -> None:
    vip = PORTS.vip(family)
    with datagrams(known_testbed.pod, family) as made:
        for count, (number, server) in enumerate(servers.items(), 1):
            assert answered(made, server, (vip, number)) == at(vip, number)
            own = at(known_testbed.pod.address(family), made.getsockname()[1])
            assert bool(by_packets(known_testbed.node, own)) is (count > ROWS)
        for number, server in servers.items():
            assert answered(made, server, (vip, number)) == at(vip, number)


# -- a backend that is asked directly, too --


def test_answers_come_from_whom_a_socket_asked_of_two_services_and_their_backend(
    known_testbed: Testbed, family: int
) -> None:
    first, two = ((named.vip(family), 80) for named in SHARED)
    direct = (backend(known_testbed).address(family), 8080)
    with datagrams(known_testbed.node, family) as made:
        for to in (first, two, direct, first, direct, two, direct):
            assert asked(made, to)[1] == at(*to)


def test_a_backend_is_asked_directly_as_before_when_half_of_its_entry_is_evicted(
    known_testbed: Testbed, servers: dict[int, socket.socket], family: int
) -> None:
    """The half that is left, by the backend, still names its answers."""
    vip, number = PORTS.vip(family), NUMBERS[-1]
    direct = (backend(known_testbed).address(family), number + 1000)
    with datagrams(known_testbed.node, family) as made, opened(known_testbed.node) as pinned:
        for service_port, server in servers.items():
            answered(made, server, (vip, service_port))
        overflow = pinned.map("socket_overflow")
        assert answered(made, servers[number], direct) == at(*direct)
        key = pinned.layout.maps["socket_overflow"].key.pack(
            {"socket": cookie(made), "address": pack(direct[0]), "port": direct[1]}
        )
        assert overflow.delete(key)
        for _ in range(2):
            assert answered(made, servers[number], direct) == at(*direct)
        assert overflow.lookup(key) is None
        assert answered(made, servers[number], (vip, number)) == at(vip, number)


# -- connected sockets that name where they send --


def test_a_connected_socket_of_the_node_may_name_its_service_for_each_datagram(
    known_testbed: Testbed, family: int
) -> None:
    vip = ONE[2].vip(family)
    with datagrams(known_testbed.node, family) as made:
        made.connect((vip, 80))
        assert asked(made, (vip, 80)) == (backend(known_testbed).name, at(vip, 80))


def test_a_connected_socket_of_a_pod_may_name_its_service_for_each_datagram(
    known_testbed: Testbed, family: int
) -> None:
    """tc has translated its connection, and translates this."""
    vip = ONE[2].vip(family)
    with datagrams(known_testbed.pod, family) as made:
        made.connect((vip, 80))
        assert asked(made, (vip, 80)) == (backend(known_testbed).name, at(vip, 80))
        own = at(*made.getsockname()[:2])
        assert by_packets(known_testbed.node, own)


def test_a_row_of_before_a_pods_socket_was_connected_translates_nothing(
    known_testbed: Testbed, family: int
) -> None:
    """It may have connected while no program was attached. The answer would not reach it."""
    vip = ONE[2].vip(family)
    with datagrams(known_testbed.pod, family) as made, opened(known_testbed.node) as pinned:
        storage = pinned.map("socket_translations")
        key = made.fileno().to_bytes(4, sys.byteorder)
        assert asked(made, (vip, 80))[1] == at(vip, 80)
        rows = storage.lookup(key)
        assert rows
        made.connect((vip, 80))
        storage.update(key, rows)
        assert asked(made, (vip, 80)) == (backend(known_testbed).name, at(vip, 80))
        assert by_packets(known_testbed.node, at(*made.getsockname()[:2]))


# -- backends of which nothing says that they serve --


def choices(node: LabNode) -> int:
    """Return how often a backend was chosen on a node."""
    with opened(node) as pinned:
        layout, counters = pinned.layout.maps["backend_counters"], pinned.map("backend_counters")
        return sum(
            int(layout.value.unpack(of_cpu)["connections"])
            for _, value in counters.items()
            if any(value)
            for of_cpu in layout.cpu_values(value)
        )


@contextmanager
def none_serves(node: LabNode) -> Iterator[None]:
    """Have no entry that says which backends serve: an agent writes these last."""
    with opened(node) as pinned:
        serving = pinned.map("udp_serving")
        entries = list(serving.items())
        serving.delete_many([key for key, _ in entries])
        try:
            yield
        finally:
            serving.update_many(entries)


@pytest.mark.parametrize("where", WHERE)
def test_a_choice_is_trusted_for_two_seconds_while_nothing_says_that_its_backend_serves(
    known_testbed: Testbed, where: str, family: int
) -> None:
    """After that it is made again, also for the only backend there is."""
    vip = ONE[2].vip(family)
    wanted = (backend(known_testbed).name, at(vip, 80))
    with (
        datagrams(getattr(known_testbed, where), family) as made,
        none_serves(known_testbed.node),
    ):
        before = choices(known_testbed.node)
        assert [asked(made, (vip, 80)) for _ in range(3)] == [wanted] * 3
        assert choices(known_testbed.node) == before + 1
        time.sleep(FRESH_SECONDS + 0.1)
        assert asked(made, (vip, 80)) == wanted
        assert choices(known_testbed.node) == before + 2


# -- datagrams without a port --


def test_a_datagram_from_port_0_keeps_its_sender(known_testbed: Testbed, family: int) -> None:
    """Nobody can answer it, but it may be sent (RFC 768)."""
    vip, pod = ONE[2].vip(family), backend(known_testbed)
    with (
        datagrams(known_testbed.node, family) as made,
        pod.socket(made.family, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw,
    ):
        assert asked(made, (vip, 80))[1] == at(vip, 80)
        if family == 6:
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_CHECKSUM, 6)
        segment = struct.pack("!HHHH", 0, made.getsockname()[1], 8 + 5, 0) + b"hello"
        raw.sendto(segment, (known_testbed.node.address(family), 0))
        data, sender = made.recvfrom(100)
    assert (data, sender[:2]) == (b"hello", (pod.address(family), 0))
