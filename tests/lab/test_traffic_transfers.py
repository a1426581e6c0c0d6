"""Large data through frontends: segmentation offload, unfinished checksums, smaller path MTUs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bpfsvc.devtools.lab.capture import Capture, Frame
from bpfsvc.devtools.lab.dial import connect
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import Host
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.testbed import LOCAL, ONE, Testbed, built_testbed, objects

_MTU = {4: (socket.IPPROTO_IP, 14), 6: (socket.IPPROTO_IPV6, 24)}  # IP_MTU, IPV6_MTU
_BIG = 2 << 20

BACKENDS = pytest.mark.parametrize("backend", [0, 1, 2], ids=["itself", "same node", "other node"])


@BACKENDS
def test_pod_moves_large_data(testbed: Testbed, family: int, backend: int) -> None:
    """Frames larger than the link and without a finished checksum are translated intact.

    They are looked at in the pod: the fast path passes by the node's end of its cable.
    """
    with Capture(testbed.pod, "eth0") as capture:
        for verb in ("fetch", "deliver"):
            with connect(testbed.pod, ONE[backend].vip(family), 80) as conversation:
                assert getattr(conversation, verb)(_BIG)
        seen = capture.frames()
    assert any(frame.partial and len(frame.data) > 2000 for frame in seen if frame.outgoing)
    assert any(frame.partial and len(frame.data) > 2000 for frame in seen if not frame.outgoing)


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_client_moves_large_data(testbed: Testbed, family: int, backend: int) -> None:
    """The same when both addresses and both ports are rewritten."""
    for verb in ("fetch", "deliver"):
        with connect(
            testbed.client, testbed.node.address(family), ONE[backend].node_port
        ) as conversation:
            assert getattr(conversation, verb)(_BIG)


@contextmanager
def _without_offload(namespace: Namespace) -> Iterator[None]:
    words = [f"{name} {{}}" for name in ("tx", "rx", "tso", "gso", "gro")]
    flags = " ".join(words)
    try:
        namespace.run(["ethtool", "-K", "eth0", *flags.format(*["off"] * 5).split()])
        yield
    finally:
        namespace.run(["ethtool", "-K", "eth0", *flags.format(*["on"] * 5).split()])


def test_finished_checksums_are_kept_right(testbed: Testbed, family: int) -> None:
    """Without offload every packet carries its whole checksum, and receivers verify it."""
    target = testbed.lab.pods[2]
    with _without_offload(testbed.pod), _without_offload(target):
        with Capture(testbed.node, testbed.pod.host_interface) as capture:
            for verb in ("fetch", "deliver"):
                with connect(testbed.pod, ONE[2].vip(family), 80) as conversation:
                    assert getattr(conversation, verb)(_BIG // 8)
            seen = [frame for frame in capture.frames() if not frame.outgoing]
        assert seen
        assert not any(frame.partial for frame in seen)
        with pod_datagrams(testbed, family) as asking:
            asking.send(b"send 1200")
            assert len(asking.recv(1 << 16)) == 1200


@contextmanager
def pod_datagrams(testbed: Testbed, family: int) -> Iterator[socket.socket]:
    """Return a UDP socket of the pod, connected to a frontend."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with testbed.pod.socket(kind, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        made.connect((ONE[2].vip(family), 80))
        yield made


# -- path MTU --------------------------------------------------------------------------------------
#
# A router that cannot forward a packet quotes it in an ICMP error to the packet's source. The quote
# shows the packet as it was there: after our rewriting. Its sender knows no such packet. Unless the
# inner header is translated back, the kernel finds no socket for the error and drops it; segments
# that are too big are then sent again and again (TCP's own probing, tcp_mtu_probing, is off by
# default), and the transfers below would stand still until their two seconds are over.


@pytest.fixture(scope="module", params=["routed", "bridge"])
def narrow(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Tunnels that carry less than pods believe, and a client behind a link of 1300 bytes."""
    network: dict[str, Any] = {"layout": request.param, "overlay": "vxlan"}
    with built_testbed(**network, pod_mtu=1500, far_mtu=1300) as testbed:
        lab, cluster = testbed
        places: list[list[Host]] = [[pod] for pod in lab.pods]
        services = [objects(one, namespace) for one, namespace in zip(ONE, places, strict=True)]
        services += [
            objects(LOCAL, list(lab.nodes[0].pods.values())[:1], externalTrafficPolicy="Local")
        ]
        cluster.put("services", *(each for service in services for each in service))
        cluster.start()
        yield testbed


def _is_too_big(frame: Frame) -> bool:
    """True if it is "fragmentation needed" (ICMP 3/4) or "packet too big" (ICMPv6 2/0)."""
    v4 = frame.data[12:14] == b"\x08\x00" and frame.data[23] == 1
    v6 = frame.data[12:14] == b"\x86\xdd" and frame.data[20] == 58
    return (v4 and frame.data[34:36] == b"\x03\x04") or (v6 and frame.data[54:56] == b"\x02\x00")


def _route_mtu(namespace: Namespace, to: str) -> str:
    return namespace.run(["ip", "-o", "route", "get", to]).stdout


def test_pod_learns_the_path_mtu_behind_a_frontend(narrow: Testbed, family: int) -> None:
    """A pod sends to a VIP whose backend is beyond a tunnel; its own node says what fits."""
    with (
        Capture(narrow.pod, "eth0") as capture,
        connect(narrow.pod, ONE[2].vip(family), 80) as conversation,
    ):
        assert conversation.socket.getsockopt(*_MTU[family]) == 1500
        assert conversation.deliver(_BIG)
        error = capture.wait(_is_too_big)
        assert conversation.socket.getsockopt(*_MTU[family]) == 1450
    # The quoted packet is the pod's own: to the frontend.
    quote = 42 if family == 4 else 62
    at_destination = quote + (16 if family == 4 else 24)
    vip = socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, ONE[2].vip(family))
    assert error.data[at_destination : at_destination + len(vip)] == vip
    assert "mtu 1450" in _route_mtu(narrow.pod, ONE[2].vip(family))


def test_backend_learns_the_path_mtu_to_a_client_it_sees(narrow: Testbed, family: int) -> None:
    """The answer to a far client is too big on its way; the error reaches the pod behind."""
    with connect(narrow.lab.far, narrow.node.address(family), LOCAL.node_port) as conversation:
        assert conversation.fetch(_BIG)
    assert "mtu 1300" in _route_mtu(narrow.pod, narrow.lab.far.address(family))


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_backend_learns_the_path_mtu_behind_a_masquerade(
    narrow: Testbed, family: int, backend: int
) -> None:
    """The same when the backend sees an address of the node: two translations to undo."""
    pod: LabPod = narrow.lab.pods[backend]
    with connect(
        narrow.lab.far, narrow.node.address(family), ONE[backend].node_port
    ) as conversation:
        assert conversation.fetch(_BIG)
    seen = narrow.leaving(pod, narrow.node, family)
    assert "mtu 1300" in _route_mtu(pod, seen)
