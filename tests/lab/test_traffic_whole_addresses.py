"""Sockets and Services whose IPv6 addresses use all bits, or resemble an IPv4 or no address.

The addresses of other tests have zeros in their middle words.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.objects import Object, port, service, slices
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, make_known
from tests.lab.test_traffic_node_sockets import WHERE, asked, datagrams
from tests.lab.testbed import ONE, SLICE_PORTS, Testbed, at, built_testbed, host, objects

WIDE = "fd96:1:2:3:4:5:6:7"
LIKE_ANY_V4 = "fd96::ffff:0:0"
LIKE_LOOPBACK_V4 = "fd96::ffff:7f00:1"
LIKE_ANY = "0:0:9600::"
VIPS = {
    "wide": WIDE,
    "like-any-v4": LIKE_ANY_V4,
    "like-loopback-v4": LIKE_LOOPBACK_V4,
    "like-any": LIKE_ANY,
}
EACH = pytest.mark.parametrize("vip", VIPS.values(), ids=list(VIPS))
FROM_EACH = pytest.mark.parametrize("where", WHERE)


def of_vip(name: str, vip: str, backend: LabPod) -> list[Object]:
    made = service(name, [vip], [port(80, "web"), port(80, "dns", "UDP")])
    return [made, slices(name, [backend], SLICE_PORTS)[-1]]


@pytest.fixture(scope="module")
def wide() -> Iterator[Testbed]:
    """A lab whose first pod has an address of all bits, as another one of its node has."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        lab = testbed.lab
        node, other = lab.nodes
        for name in list(node.pods):
            node.pods[name].remove()
        for name, address in (("asks", "fd44:1:a:b:c:d:e:f"), ("answers", "fd44:1:1:2:3:4:5:6")):
            pod = node.add_pod(name, [address])
            links.add_route(
                other, links.host_route(pod.addresses[6]), other.uplink, node.addresses[6]
            )
            pod.serve(8080)
        for named, pod in zip(ONE, lab.pods, strict=True):
            testbed.cluster.put(named.name, *objects(named, [pod]))
        for name, vip in VIPS.items():
            testbed.cluster.put(name, *of_vip(name, vip, lab.pods[1]))
        testbed.cluster.start()
        make_known(testbed, testbed.pod)
        yield testbed


@FROM_EACH
@EACH
def test_a_connection_to_it_reaches_the_backend_and_has_its_name(
    wide: Testbed, where: str, vip: str
) -> None:
    answer = ask(getattr(wide, where), vip, 80)
    assert (answer.pod, answer.remote) == (wide.lab.pods[1].name, at(vip, 80))
    assert answer.local == at(wide.lab.pods[1].address(6), 8080)


@EACH
def test_a_connection_of_a_pod_to_it_is_translated_by_the_hook(wide: Testbed, vip: str) -> None:
    answer = ask(wide.pod, vip, 80)
    assert host(answer.peer) == wide.pod.address(6)
    assert not by_packets(wide.node, answer.peer)


@FROM_EACH
@EACH
def test_an_answer_to_a_datagram_comes_from_it(wide: Testbed, where: str, vip: str) -> None:
    with datagrams(getattr(wide, where), 6) as made:
        assert asked(made, (vip, 80)) == (wide.lab.pods[1].name, at(vip, 80))


def test_a_datagram_of_a_socket_that_is_bound_to_the_pods_address_is_translated_by_the_hook(
    wide: Testbed,
) -> None:
    """tc would have an entry for it; the hook compares the address with that of the pod."""
    with datagrams(wide.pod, 6) as made:
        made.bind((wide.pod.address(6), 0))
        assert asked(made, (WIDE, 80)) == (wide.lab.pods[1].name, at(WIDE, 80))
        assert not by_packets(wide.node, at(*made.getsockname()[:2]))
