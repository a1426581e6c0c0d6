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

from bpfsvc.lab.dial import Protocol, ask, tally
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.patience import wait
from tests.lab.scene import EMPTY, EXTERNAL, INGRESS, ONE, WEB, Scene, built, objects

_IPV6_HDRINCL = 36  # of linux/in6.h

PATTERN = bytes(range(256)) * 32


@pytest.fixture(scope="module", params=["routed", "bridge"])
def ruled(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A lab with Services of all kinds."""
    with built(layout=request.param) as scene:
        lab, cluster = scene
        for network in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            lab.client.route(network, via=lab.nodes[0])
        cidrs = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd96::/64"]},
        }
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
        yield scene


def refusal(place: Namespace, address: str, port: int, transport: Protocol) -> int:
    """Send to where nobody is; give the error that comes back, 0 for none within a second."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    with place.socket(family, kind) as made:
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
def test_a_packet_to_nobody_is_refused_at_once(
    ruled: Scene, family: int, transport: Protocol, who: str, what: str
) -> None:
    """With an ICMP error that the client's kernel believes; see reject.h."""
    place = ruled.pod if who == "pod" else ruled.client
    address, port = {
        "no endpoints": (EMPTY.vip(family), 80),
        "undefined port": (ONE[1].vip(family), 81),
        "no endpoints at the NodePort": (ruled.node.address(family), EMPTY.node_port),
    }[what]
    assert refusal(place, address, port, transport) == errno.ECONNREFUSED


def test_a_cluster_ip_that_nobody_has_is_silent(
    ruled: Scene, family: int, transport: Protocol
) -> None:
    address = "10.96.200.1" if family == 4 else "fd96::200:1"
    assert refusal(ruled.pod, address, 80, transport) == 0


def test_a_client_stays_with_its_backend(ruled: Scene, family: int, transport: Protocol) -> None:
    """By the cluster IP and by the NodePort alike; see affinity.h."""
    for place in (ruled.pod, ruled.client):
        first = ask(place, WEB.vip(family), 80, transport).pod
        assert tally(place, WEB.vip(family), 80, transport, count=20) == {first: 20}
        node_port = (ruled.node.address(family), WEB.node_port)
        assert tally(place, *node_port, transport, count=20) == {first: 20}


def test_another_service_makes_a_choice_of_its_own(ruled: Scene, family: int) -> None:
    ask(ruled.pod, WEB.vip(family), 80)
    assert ask(ruled.pod, ONE[1].vip(family), 80).pod == ruled.lab.pods[1].name


def test_only_clients_in_range_reach_the_load_balancers_address(
    ruled: Scene, family: int, transport: Protocol
) -> None:
    """Others meet silence there, and an answer at every other address of the Service."""
    backend = ruled.lab.pods[2].name
    assert tally(ruled.client, INGRESS[family], 80, transport, count=3) == {backend: 3}
    assert refusal(ruled.pod, INGRESS[family], 80, transport) == 0
    for address in (ONE[2].vip(family), EXTERNAL[family]):
        assert tally(ruled.pod, address, 80, transport, count=3) == {backend: 3}


def echoed(place: Namespace, address: str, port: int, size: int) -> bool:
    """Whether a datagram of ``size`` bytes comes back whole."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    data = (b"echo " + PATTERN)[:size]
    with place.socket(family, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        made.connect((address, port))
        made.send(data)
        return made.recv(size + 1) == data


@pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])
@pytest.mark.parametrize("who", ["pod", "client"])
def test_a_datagram_in_fragments_is_carried_both_ways(
    ruled: Scene, family: int, who: str, backend: int
) -> None:
    """Pods ask by the cluster IP, the client by the NodePort, where it is masqueraded."""
    place, address, port = (
        (ruled.pod, ONE[backend].vip(family), 80)
        if who == "pod"
        else (ruled.client, ruled.node.address(family), ONE[backend].node_port)
    )
    for size in (1473, 4000, 8000):
        assert echoed(place, address, port, size)


def pieces(source: str, address: str, data: bytes, number: int) -> list[bytes]:
    """Cut a datagram to port 80 into fragments."""
    datagram = UDP(sport=45679, dport=80) / Raw(data)
    found: list[Packet]
    if ":" in address:
        whole6 = IPv6(src=source, dst=address) / IPv6ExtHdrFragment(id=number) / datagram
        found = fragment6(whole6, 1280)  # type: ignore[no-untyped-call]
    else:
        whole = IP(bytes(IP(src=source, dst=address, id=number) / datagram))
        found = whole.fragment(1200)  # type: ignore[no-untyped-call]
    return [bytes(piece) for piece in found]


@pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])
def test_fragments_that_overtake_the_first_find_their_way(
    ruled: Scene, family: int, backend: int
) -> None:
    """They go round until it has passed, some milliseconds at most; see fragments.h."""
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
            # A sender that is not given the processor in between is too slow: it tries again.
            for piece in reversed(pieces(source, address, data, next(numbers))):
                raw.sendto(piece, (address, 0))
            try:
                return made.recvfrom(5000)[0] == data
            except TimeoutError:
                return False

        wait(comes_back, "a datagram comes back", timeout=20)


def test_a_udp_client_with_one_port_moves_when_its_backend_serves_no_more(
    ruled: Scene, family: int
) -> None:
    """Of the node also with a connected socket, which is closed so that its owner asks anew."""
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

        def is_closed() -> bool:
            try:
                connected.send(b"who")
            except OSError as error:
                return error.errno in (errno.EDESTADDRREQ, errno.ECONNABORTED)
            return False

        wait(is_closed, "the connected socket is closed")
