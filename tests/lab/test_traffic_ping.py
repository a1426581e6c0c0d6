"""Pings of addresses of Services (--vip-echo on): from pods, from a node, and from outside."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import readable, stretched
from tests.lab.testbed import EMPTY, EXTERNAL, INGRESS, WEB, Named, Testbed, built_testbed, objects

LAYOUTS: dict[str, dict[str, Any]] = {
    "routed": {"layout": "routed"},
    "bridge": {"layout": "bridge"},
    "routed-vxlan": {"layout": "routed", "overlay": "vxlan"},
}
WHERE = ("pod", "node", "client")
COMING = Named("coming", 72)

PROTOCOLS = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
REQUEST, REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
UNREACHABLE = {4: (3, 3), 6: (1, 4)}
"""Type and code of "port unreachable"."""
PROBE_PORT = 1025
"""To which iputils' ping connects a datagram socket, to learn its own address."""
OPEN_PORT = 7


class Message(NamedTuple):
    """An ICMP message that came: type and code, hop limit, identifier to data, sender."""

    kind: tuple[int, int]
    hops: int
    rest: bytes
    sender: str


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(layout, marks=() if name == "routed" else pytest.mark.slow, id=name)
        for name, layout in LAYOUTS.items()
    ],
)
def place(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab whose agents answer pings."""
    with built_testbed(**request.param) as testbed:
        lab, cluster = testbed
        cluster.put(
            "services",
            *objects(WEB, lab.pods, externalIPs=[*EXTERNAL.values()], ingress=[*INGRESS.values()]),
            *objects(EMPTY, []),
        )
        for network in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            lab.client.route(network, via=testbed.node)
        cluster.options = ("--vip-echo", "on")
        cluster.start()
        yield testbed


def probe(namespace: Namespace, address: str, family: int) -> str:
    """Return the source address for pings, found as iputils' ping finds it."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with namespace.socket(kind, socket.SOCK_DGRAM) as made:
        made.connect((address, PROBE_PORT))
        own: str = made.getsockname()[0]
    return own


def ping(namespace: Namespace, address: str, family: int, data: bytes) -> Message:
    """Send an echo request; return the message that answers it."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    start = struct.pack("!HH", random.randrange(1 << 16), 7)
    source = probe(namespace, address, family)
    with namespace.socket(kind, socket.SOCK_RAW, PROTOCOLS[family]) as raw:
        raw.bind((source, 0))
        if family == 6:
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        head = struct.pack("!BBH", REQUEST[family], 0, 0) + start
        message = head[:2] + (_checksum(head + data) if family == 4 else bytes(2)) + start + data
        raw.sendto(message, (address, 0))
        deadline = time.monotonic() + stretched(2)
        while readable(raw, deadline - time.monotonic()):
            found = _received(raw, family)
            if start in found.rest:
                return found
    raise TimeoutError(f"no answer from {address}")


def _checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def _received(raw: socket.socket, family: int) -> Message:
    data, ancillary, _, sender = raw.recvmsg(1 << 16, 64)
    hops = struct.unpack("=i", ancillary[0][2])[0] if family == 6 else data[8]
    if family == 4:
        data = data[(data[0] & 0xF) * 4 :]
    return Message((data[0], data[1]), hops, data[4:], sender[0])


@pytest.mark.parametrize("where", WHERE)
def test_addresses_of_a_service_answer_everywhere(place: Testbed, where: str, family: int) -> None:
    namespace = getattr(place, where)
    for address in (WEB.vip(family), EXTERNAL[family], INGRESS[family]):
        reply = ping(namespace, address, family, b"abcdefgh")
        assert reply.kind == (REPLY[family], 0)
        assert (reply.sender, reply.hops, reply.rest[4:]) == (address, 64, b"abcdefgh")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [0, 1400, 4000, 20000])
def test_a_ping_of_any_size_comes_back_as_it_was(
    place: Testbed, where: str, family: int, size: int
) -> None:
    """Beyond the MTU in fragments. The kernel has checked the checksum of what it hands over."""
    data = random.randbytes(size)
    reply = ping(getattr(place, where), WEB.vip(family), family, data)
    assert (reply.kind, reply.rest[4:]) == ((REPLY[family], 0), data)


@pytest.mark.parametrize("where", ["pod", "client"])
def test_without_an_endpoint_a_cluster_ip_refuses(place: Testbed, where: str, family: int) -> None:
    reply = ping(getattr(place, where), EMPTY.vip(family), family, b"abcdefgh")
    assert reply.kind == UNREACHABLE[family]


def test_a_ping_of_the_node_itself_has_no_answer_without_an_endpoint(
    place: Testbed, family: int
) -> None:
    """Already where it looks for its own address."""
    with pytest.raises(ConnectionRefusedError):
        probe(place.node, EMPTY.vip(family), family)


def test_a_socket_for_pings_alone_may_be_connected(place: Testbed, family: int) -> None:
    """As unprivileged programs have it: the kernel writes identifier and checksum."""
    place.node.sysctl("net.ipv4.ping_group_range", "0 0")
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with place.node.socket(kind, socket.SOCK_DGRAM, PROTOCOLS[family]) as made:
        made.connect((WEB.vip(family), 0))
        made.send(struct.pack("!BBHHH", REQUEST[family], 0, 0, 0, 7) + b"abcdefgh")
        assert readable(made, stretched(2))
        answer = made.recv(100)
        assert (answer[0], answer[6:]) == (REPLY[family], b"\0\7abcdefgh")
    with (
        place.node.socket(kind, socket.SOCK_DGRAM, PROTOCOLS[family]) as made,
        pytest.raises(ConnectionRefusedError),
    ):
        made.connect((EMPTY.vip(family), 0))


def test_an_undefined_port_is_refused_as_before(place: Testbed, family: int) -> None:
    for transport in ("tcp", "udp"):
        counts = tally(place.node, WEB.vip(family), OPEN_PORT, transport, count=1)
        assert counts == {"refused": 1}
    assert tally(place.node, WEB.vip(family), PROBE_PORT, "tcp", count=1) == {"refused": 1}


def test_an_address_answers_from_the_first_endpoint_to_the_last(
    place: Testbed, family: int
) -> None:
    kinds = []
    for pods in ([], place.lab.pods[:1], []):
        place.cluster.apply("coming", *objects(COMING, pods))
        kinds.append(ping(place.pod, COMING.vip(family), family, b"abcdefgh").kind)
    assert kinds == [UNREACHABLE[family], (REPLY[family], 0), UNREACHABLE[family]]
    place.cluster.drop("coming")
    place.cluster.settle()


def test_explain_says_that_a_ping_is_answered(place: Testbed) -> None:
    words = ("--from", "pod", place.pod.address(4), "TCP", f"{WEB.vip(4)}:80")
    said = place.cluster.command(place.node, "explain", *words).stdout
    assert f"a ping of {WEB.vip(4)} is answered by this node" in said


def test_a_restart_with_pings_off_and_on_again_changes_what_is_answered(place: Testbed) -> None:
    expected = {"off": UNREACHABLE[4], "on": (REPLY[4], 0)}
    for word, kind in expected.items():
        place.cluster.stop(place.node)
        place.cluster.options = ("--vip-echo", word)
        place.cluster.start(place.node)
        assert ping(place.pod, WEB.vip(4), 4, b"abcdefgh").kind == kind
