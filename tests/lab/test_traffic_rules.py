"""Rules of Services on real packets: refusals, affinity, source ranges, fragments."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.packet import Packet, Raw

from bpfsvc.devtools.lab.dial import Protocol, ask, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import service_cidr
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import EMPTY, EXTERNAL, INGRESS, ONE, WEB, Testbed, built_testbed, objects

_IPV6_HDRINCL = 36  # of linux/in6.h

PATTERN = bytes(range(256)) * 32


@pytest.fixture(scope="module", params=["routed", "bridge"])
def ruled(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab with Services of all kinds."""
    with built_testbed(layout=request.param) as testbed:
        lab, cluster = testbed
        for network in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            lab.client.route(network, via=lab.nodes[0])
        cidrs = service_cidr("10.96.0.0/16", "fd96::/64")
        sticky = {"clientIP": {"timeoutSeconds": 600}}
        cluster.put(
            "services",
            cidrs,
            *objects(EMPTY, []),
            *objects(WEB, lab.pods, sessionAffinity="ClientIP", sessionAffinityConfig=sticky),
            *objects(ONE[1], [lab.pods[1]]),
            *objects(
                ONE[2],
                [lab.pods[2]],
                ingress=list(INGRESS.values()),
                externalIPs=list(EXTERNAL.values()),
                loadBalancerSourceRanges=[
                    f"{lab.client.address(4)}/32",
                    f"{lab.client.address(6)}/128",
                ],
            ),
        )
        cluster.start()
        yield testbed


def refusal(namespace: Namespace, address: str, port: int, transport: Protocol) -> int:
    """Send to an address without a server; return the error, 0 for none within a second."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    with namespace.socket(family, kind) as made:
        made.settimeout(1)
        try:
            made.connect((address, port))
            if transport == "udp":
                made.send(b"who")
                made.recv(100)
        except TimeoutError:
            return 0
        except OSError as error:
            return error.errno or 0
    return -1


@pytest.mark.parametrize("who", ["pod", "client"])
@pytest.mark.parametrize("what", ["no endpoints", "undefined port", "no endpoints at the NodePort"])
def test_a_packet_without_an_endpoint_is_refused_at_once(
    ruled: Testbed, family: int, transport: Protocol, who: str, what: str
) -> None:
    """With an ICMP error that the client's kernel accepts; see reject.h."""
    namespace = ruled.pod if who == "pod" else ruled.client
    address, port = {
        "no endpoints": (EMPTY.vip(family), 80),
        "undefined port": (ONE[1].vip(family), 81),
        "no endpoints at the NodePort": (ruled.node.address(family), EMPTY.node_port),
    }[what]
    assert refusal(namespace, address, port, transport) == errno.ECONNREFUSED


def test_packets_to_an_unassigned_cluster_ip_are_dropped(
    ruled: Testbed, family: int, transport: Protocol
) -> None:
    address = "10.96.200.1" if family == 4 else "fd96::200:1"
    assert refusal(ruled.pod, address, 80, transport) == 0


def test_a_client_with_affinity_keeps_its_backend(
    ruled: Testbed, family: int, transport: Protocol
) -> None:
    """Both by the cluster IP and by the NodePort; see affinity.h."""
    for namespace in (ruled.pod, ruled.client):
        first = ask(namespace, WEB.vip(family), 80, transport).pod
        assert tally(namespace, WEB.vip(family), 80, transport, count=20) == {first: 20}
        node_port = (ruled.node.address(family), WEB.node_port)
        assert tally(namespace, *node_port, transport, count=20) == {first: 20}


def test_another_service_has_its_own_affinity(ruled: Testbed, family: int) -> None:
    ask(ruled.pod, WEB.vip(family), 80)
    assert ask(ruled.pod, ONE[1].vip(family), 80).pod == ruled.lab.pods[1].name


def test_only_clients_in_range_reach_the_load_balancers_address(
    ruled: Testbed, family: int, transport: Protocol
) -> None:
    """Other clients are dropped there, and served at every other address of the Service."""
    backend = ruled.lab.pods[2].name
    assert tally(ruled.client, INGRESS[family], 80, transport, count=3) == {backend: 3}
    assert refusal(ruled.pod, INGRESS[family], 80, transport) == 0
    for address in (ONE[2].vip(family), EXTERNAL[family]):
        assert tally(ruled.pod, address, 80, transport, count=3) == {backend: 3}


def echoed(namespace: Namespace, address: str, port: int, size: int) -> bool:
    """True if a datagram of ``size`` bytes comes back whole."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    data = (b"echo " + PATTERN)[:size]
    with namespace.socket(family, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        made.connect((address, port))
        made.send(data)
        return made.recv(size + 1) == data


@pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])
@pytest.mark.parametrize("who", ["pod", "client"])
def test_a_fragmented_datagram_is_translated_both_ways(
    ruled: Testbed, family: int, who: str, backend: int
) -> None:
    """Pods use the cluster IP; the external client uses the NodePort and is masqueraded."""
    namespace, address, port = (
        (ruled.pod, ONE[backend].vip(family), 80)
        if who == "pod"
        else (ruled.client, ruled.node.address(family), ONE[backend].node_port)
    )
    for size in (1473, 4000, 8000):
        assert echoed(namespace, address, port, size)


def pieces(source: str, address: str, data: bytes, number: int) -> list[bytes]:
    """Cut a datagram to port 80 into fragments."""
    datagram = UDP(sport=45679, dport=80) / Raw(data)
    pieces: list[Packet]
    if ":" in address:
        whole6 = IPv6(src=source, dst=address) / IPv6ExtHdrFragment(id=number) / datagram
        pieces = fragment6(whole6, 1280)  # type: ignore[no-untyped-call]
    else:
        whole = IP(bytes(IP(src=source, dst=address, id=number) / datagram))
        pieces = whole.fragment(1200)  # type: ignore[no-untyped-call]
    return [bytes(piece) for piece in pieces]


@pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])
def test_fragments_that_overtake_the_first_are_translated_too(
    ruled: Testbed, family: int, backend: int
) -> None:
    """They wait until it has passed, some milliseconds at most; see fragments.h."""
    source, address = ruled.pod.address(family), ONE[backend].vip(family)
    data = (b"echo " + PATTERN)[:4000]
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    own_header = (
        (socket.IPPROTO_IP, socket.IP_HDRINCL)
        if family == 4
        else (socket.IPPROTO_IPV6, _IPV6_HDRINCL)
    )
    numbers = itertools.count(1)
    with (
        ruled.pod.socket(kind, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw,
        ruled.pod.socket(kind, socket.SOCK_DGRAM) as made,
    ):
        made.settimeout(0.2)
        made.bind((source, 45679))
        raw.setsockopt(*own_header, 1)

        def comes_back() -> bool:
            # A sender that loses the CPU in between is too slow: it tries again.
            for piece in reversed(pieces(source, address, data, next(numbers))):
                raw.sendto(piece, (address, 0))
            try:
                return made.recvfrom(5000)[0] == data
            except TimeoutError:
                return False

        wait(comes_back, "a datagram comes back", timeout=20)


def test_a_udp_client_with_one_port_moves_when_its_backend_serves_no_more(
    ruled: Testbed, family: int
) -> None:
    """Of the node also with a connected socket: its owner notices nothing."""
    pods = ruled.lab.pods
    moving = ONE[3]
    ruled.cluster.apply("moving", *objects(moving, [pods[1]]))
    source = (ruled.pod.address(family), 45678)
    before = ask(ruled.pod, moving.vip(family), 80, "udp", source=source)
    with ruled.node.socket(
        socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM
    ) as connected:
        connected.settimeout(2)
        connected.connect((moving.vip(family), 80))
        connected.send(b"who")
        assert pods[1].name.encode() in connected.recv(1000)
        ruled.cluster.apply("moving", *objects(moving, [pods[3]]))
        after = ask(ruled.pod, moving.vip(family), 80, "udp", source=source)
        assert (before.pod, after.pod) == (pods[1].name, pods[3].name)

        def is_moved() -> bool:
            connected.send(b"who")
            return pods[3].name.encode() in connected.recv(1000)

        wait(is_moved, "the connected socket has answers of the new backend")
