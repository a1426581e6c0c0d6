"""BIG TCP: offloads make packets of up to 192 kB, longer than an IP header can say.

An IPv4 header then says a length of 0. So does an IPv6 header, and until the kernel has cut the
packet into segments, a hop-by-hop header with the length follows (the jumbo payload of RFC 2675).
Linux does not forward such a packet whose segments fill the MTU: it counts that header as one of
each segment, and answers that the packet is too big. So only the fast path forwards them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.capture import Capture
from bpfsvc.devtools.lab.dial import connect
from bpfsvc.devtools.lab.namespace import Namespace
from tests.lab.fast_path import Counts, fast, forbid_invalid, services
from tests.lab.testbed import ONE, Testbed, built_testbed

_SIZE = 192 << 10
_LONGEST = 1 << 16
"""Of a packet whose IP header says its length."""
_DATA = 16 << 20


def _allow_big_packets(testbed: Testbed) -> None:
    lab = testbed.lab
    for namespace in (lab.switch, lab.client, *lab.nodes, *lab.pods):
        for link in namespace.netlink.get_links():
            name = link.get("ifname")
            if name != "lo":
                links.find(namespace, name).allow_packets(_SIZE)
    for namespace in (lab.client, *lab.pods):
        # Segments of a packet, at least: otherwise the speed of the machine decides.
        namespace.run(["sysctl", "-qw", "net.ipv4.tcp_min_tso_segs=128"])


@pytest.fixture(scope="module")
def by_fast_path() -> Iterator[Testbed]:
    with fast(layout="routed") as testbed:
        _allow_big_packets(testbed)
        yield testbed


@pytest.fixture(scope="module")
def by_stack() -> Iterator[Testbed]:
    with built_testbed(layout="routed") as testbed:
        for node in testbed.lab.nodes:
            forbid_invalid(node)
            node.serve(6443)
        services(testbed)
        _allow_big_packets(testbed)
        testbed.cluster.start()
        yield testbed


@contextmanager
def big_packets(namespace: Namespace) -> Iterator[None]:
    """Assert that such packets arrive in a namespace and leave it."""
    with Capture(namespace, "eth0") as capture:
        yield
        longest = dict.fromkeys((True, False), 0)
        for frame in capture.frames():
            longest[frame.outgoing] = max(longest[frame.outgoing], len(frame.data))
    assert min(longest.values()) > _LONGEST, longest


def moves_data(namespace: Namespace, address: str, port: int) -> bool:
    """True if much data arrive both ways."""
    for verb in ("fetch", "deliver"):
        with connect(namespace, address, port, timeout=10) as conversation:
            if not getattr(conversation, verb)(_DATA):
                return False
    return True


BACKENDS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


@BACKENDS
@pytest.mark.parametrize("way", ["direct", "through a Service"])
def test_big_packets_between_pods_are_fast(
    by_fast_path: Testbed, family: int, backend: int, way: str
) -> None:
    """Netfilter sees none of them: it would not know their connection."""
    testbed, pod = by_fast_path, by_fast_path.lab.pods[backend]
    counts = [Counts(node, family) for node in testbed.lab.nodes]
    to = (pod.address(family), 8080) if way == "direct" else (ONE[backend].vip(family), 80)
    with big_packets(pod):
        assert moves_data(testbed.pod, *to)
    for each in counts if backend == 2 else counts[:1]:
        each.all_fast(least=100)


@BACKENDS
def test_big_packets_between_pods_go_by_the_stack(
    by_stack: Testbed, family: int, backend: int
) -> None:
    with big_packets(by_stack.lab.pods[backend]) if family == 4 else nullcontext():
        assert moves_data(by_stack.pod, ONE[backend].vip(family), 80)


@pytest.mark.parametrize("path", ["by_fast_path", "by_stack"])
@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_big_packets_of_a_client_outside_are_masqueraded(
    request: pytest.FixtureRequest, family: int, backend: int, path: str
) -> None:
    testbed: Testbed = request.getfixturevalue(path)
    counts = Counts(testbed.node, family)
    forwarded = family == 4 or path == "by_fast_path"
    with big_packets(testbed.lab.pods[backend]) if forwarded else nullcontext():
        assert moves_data(testbed.client, testbed.node.address(family), ONE[backend].node_port)
    _, _, invalid = counts.since()
    assert invalid == 0
