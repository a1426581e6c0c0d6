"""Calls of pods that the socket hooks leave to tc, and how they learn of a pod all the same."""

from __future__ import annotations

import ipaddress
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.base.address import pack
from bpfsvc.devtools.lab.dial import Protocol, ask, tally
from bpfsvc.devtools.lab.objects import port, service, slices
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, make_known, opened, state, unknown_pod
from tests.lab.node_calls import changed_settings, no_storage, stopped_agent
from tests.lab.test_traffic_node_sockets import asked, datagrams
from tests.lab.test_traffic_pod_sockets import WITHOUT_PORT, add_pod_address, backend
from tests.lab.testbed import (
    FAMILIES,
    ONE,
    SLICE_PORTS,
    Named,
    Testbed,
    at,
    built_testbed,
    host,
    objects,
)

OWN = Named("own", 71)
"""A Service with an external address that is the client pod's own."""

LOCAL = Named("local", 75)
"""A Service whose NodePort is not masqueraded for pods."""

ZEROS = {"zeros-1": "::1:0:0:0:5", "zeros-2": "::1:0:0:5"}
"""Services whose cluster IPs begin with zeros, and so does ::1."""

BY_DEVICE = ((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0"),)
UDP_LITE = 136
TRIED = 2
TRIAL_SECONDS = 60


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are known to the hooks."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        pods = testbed.lab.pods
        own = [testbed.pod.address(family) for family in FAMILIES]
        every = [
            *(objects(named, [pod]) for named, pod in zip(ONE, pods, strict=True)),
            objects(OWN, pods[2:3], externalIPs=own),
            objects(LOCAL, pods[1:2], externalTrafficPolicy="Local"),
            *(
                [service(name, [vip], [port(80, "web")]), *slices(name, pods[2:3], SLICE_PORTS)]
                for name, vip in ZEROS.items()
            ),
        ]
        testbed.cluster.put("services", *itertools.chain.from_iterable(every))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


@pytest.fixture
def new_pod(known_testbed: Testbed) -> Iterator[LabPod]:
    """A pod that the hooks do not know yet."""
    with unknown_pod(known_testbed.node) as pod:
        yield pod


@contextmanager
def remembered(pod: LabPod, family: int, **fields: int) -> Iterator[None]:
    """Have the hooks remember other things of a pod; its entry comes back."""
    prefix = f"v{family}"
    with opened(pod.node) as pinned:
        table, record = pinned.map("namespaces"), pinned.layout.maps["namespaces"].value
        (key, value), *_ = (
            (key, value)
            for key, value in table.items()
            if record.unpack(value)[f"{prefix}.address"] == pack(pod.address(family))
        )
        changed = {f"{prefix}.{name}": number for name, number in fields.items()}
        table.update(key, record.pack(record.unpack(value) | changed))
        try:
            yield
        finally:
            table.update(key, value)


def own_end(pod: LabPod, family: int, made: socket.socket) -> str:
    return at(pod.address(family), made.getsockname()[1])


# -- sockets whose packets may take another way --


def test_a_socket_that_is_bound_to_an_interface_is_left_to_tc(
    known_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """Its packets may take another route than those of the pod's other sockets."""
    pod, vip = known_testbed.pod, ONE[2].vip(family)
    for options, is_left in (((), False), (BY_DEVICE, True)):
        answer = ask(pod, vip, 80, transport, connected=False, options=options)
        assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(vip, 80))
        own = at(pod.address(family), int(answer.own.rpartition(":")[2]))
        assert bool(by_packets(known_testbed.node, own)) is is_left


def test_a_socket_without_a_port_that_is_bound_to_a_second_address_is_left_to_tc(
    known_testbed: Testbed, new_pod: LabPod, family: int
) -> None:
    """The hook would choose for the address that it knows."""
    make_known(known_testbed, new_pod)
    known = new_pod.address(family)
    for address in (known, *similar(known)):
        if address != known:
            add_pod_address(new_pod, address)
        answer = ask(new_pod, ONE[1].vip(family), 80, source=(address, 0), options=WITHOUT_PORT)
        assert (answer.pod, host(answer.own)) == (known_testbed.lab.pods[1].name, address)
        assert bool(by_packets(known_testbed.node, answer.own)) is (address != known)


def similar(address: str) -> list[str]:
    """Return addresses that differ in the last digit only, or (IPv6) in the first digits only."""
    known = ipaddress.ip_address(address)
    return [str(known + 80), *([str(known - (1 << 112))] if known.version == 6 else [])]


def test_a_pods_own_address_is_the_pods_also_where_a_service_has_it(
    known_testbed: Testbed, family: int
) -> None:
    """Such a packet never leaves the pod. To all others it is an address of the Service."""
    own = known_testbed.pod.address(family)
    assert ask(known_testbed.lab.pods[1], own, 80).pod == backend(known_testbed).name
    server = known_testbed.pod.serve(80, name="own server")
    try:
        assert ask(known_testbed.pod, own, 80).pod == "own server"
        assert ask(known_testbed.pod, OWN.vip(family), 80).pod == backend(known_testbed).name
    finally:
        known_testbed.pod.end(server)


def test_datagrams_of_udp_lite_go_where_they_are_sent(known_testbed: Testbed, family: int) -> None:
    """No Service has this protocol."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    pod, server = known_testbed.pod, backend(known_testbed)
    with (
        pod.socket(domain, socket.SOCK_DGRAM, UDP_LITE) as made,
        server.socket(domain, socket.SOCK_DGRAM, UDP_LITE) as listener,
    ):
        listener.settimeout(stretched(2))
        listener.bind(("", 8080))
        made.sendto(b"to the Service", (ONE[2].vip(family), 80))
        made.sendto(b"to the pod", (server.address(family), 8080))
        data, sender = listener.recvfrom(100)
        assert (data, at(*sender[:2])) == (b"to the pod", own_end(pod, family, made))


# -- addresses and clients --


def test_loopback_in_a_pod_is_the_pods_own_also_where_the_node_has_a_port(
    known_testbed: Testbed,
) -> None:
    """The hook would send these calls to a backend, because these calls need no masquerade."""
    number = LOCAL.node_port
    to_node = tally(known_testbed.pod, known_testbed.node.address(4), number, count=1)
    assert to_node == {known_testbed.lab.pods[1].name: 1}
    assert tally(known_testbed.pod, "127.0.0.1", number, count=1) == {"refused": 1}


@pytest.mark.parametrize("vip", ZEROS.values(), ids=ZEROS)
def test_an_address_that_begins_with_zeros_is_not_taken_for_loopback(
    known_testbed: Testbed, vip: str
) -> None:
    answer = ask(known_testbed.pod, vip, 80)
    assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(vip, 80))
    assert not by_packets(known_testbed.node, answer.peer)


def test_a_pod_that_is_no_pod_to_the_node_any_more_is_left_to_tc(
    known_testbed: Testbed, family: int
) -> None:
    """Its calls are masqueraded from then on. Once in a second the hook looks who the client is."""
    pod, vip = known_testbed.pod, ONE[2].vip(family)

    def left_to_tc() -> bool:
        answer = ask(pod, vip, 80)
        own = at(pod.address(family), int(answer.own.rpartition(":")[2]))
        return bool(by_packets(known_testbed.node, own))

    with stopped_agent(known_testbed) as pinned:
        with changed_settings(pinned, detect_interfaces=0, detect_pods_v4=0, detect_pods_v6=0):
            wait(left_to_tc, "its calls are left to tc")
        wait(lambda: not left_to_tc(), "they are translated again")


# -- what is learned --


def test_a_namespace_is_learned_from_a_call_to_a_node_port(
    known_testbed: Testbed, new_pod: LabPod, family: int
) -> None:
    to = (known_testbed.node.address(family), ONE[2].node_port)
    answer = ask(new_pod, *to)
    assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(*to))
    assert state(new_pod, family) == "learned"


def test_nothing_is_learned_from_a_datagram_of_a_socket_that_is_bound_to_an_address(
    known_testbed: Testbed, new_pod: LabPod, family: int
) -> None:
    """Other sockets of the pod need not use that address."""
    vip = ONE[2].vip(family)
    own = (new_pod.address(family), "unknown")
    for address, learned in (own, own, ("", "learned")):
        with datagrams(new_pod, family) as made:
            made.bind((address, 0))
            assert asked(made, (vip, 80)) == (backend(known_testbed).name, at(vip, 80))
            assert by_packets(known_testbed.node, own_end(new_pod, family, made))
        assert state(new_pod, family) == learned


def test_after_a_trial_whose_packet_never_came_calls_are_left_to_tc_for_a_time(
    known_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """The first such time is two minutes. Then there is another trial."""
    pod, vip = known_testbed.pod, ONE[2].vip(family)
    time_left = 2 * TRIAL_SECONDS
    for seconds, is_left in ((1, True), (time_left - 5, True), (time_left + 1, False)):
        tried = time.monotonic_ns() - seconds * 1_000_000_000
        with remembered(pod, family, state=TRIED, trials=1, tried=tried):
            answer = ask(pod, vip, 80, transport, connected=False)
            own = at(pod.address(family), int(answer.own.rpartition(":")[2]))
            assert answer.pod == backend(known_testbed).name
            assert bool(by_packets(known_testbed.node, own)) is is_left
            assert state(pod, family) == ("tried" if is_left else "proven")


# -- without memory --


def test_calls_that_no_note_can_be_made_of_are_left_to_tc(
    known_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """A datagram; and a connection that is to prove what is known of its pod."""
    pod, vip = known_testbed.pod, ONE[2].vip(family)
    with remembered(pod, family, due=1), no_storage(pod):
        answer = ask(pod, vip, 80, transport, connected=False)
        own = at(pod.address(family), int(answer.own.rpartition(":")[2]))
    assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(vip, 80))
    assert by_packets(known_testbed.node, own)


def test_nothing_is_learned_from_a_socket_that_no_note_can_be_made_of(
    known_testbed: Testbed, new_pod: LabPod, family: int, transport: Protocol
) -> None:
    vip = ONE[2].vip(family)
    with no_storage(new_pod):
        answer = ask(new_pod, vip, 80, transport, connected=False)
        own = at(new_pod.address(family), int(answer.own.rpartition(":")[2]))
    assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(vip, 80))
    assert by_packets(known_testbed.node, own)
    assert state(new_pod, family) == "unknown"
