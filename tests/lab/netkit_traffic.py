"""Pods on netkit, the newer alternative to veth, in both of its modes.

Run by ``guest.sh`` on a kernel that has netkit: without it, everything here fails. In L2 mode the
two ends have hardware addresses and neighbours, as those of a veth. In L3 mode they have none:
frames have a header of zeros.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import netkit
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.devices import Device
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.devtools.lab.dial import Protocol, ask, connect
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.doctor.collect.others import foreign_programs
from tests.lab.fast_path import OUTSIDE, Counts, fast, packets_by_port
from tests.lab.testbed import FAMILIES, ONE, TRANSPORTS, Testbed

_BIG = 2 << 20

BACKENDS = pytest.mark.parametrize("backend", [0, 1, 2], ids=["itself", "same node", "other node"])
OTHERS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


@pytest.fixture(scope="module", params=["netkit-l2", "netkit-l3"])
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Routed pods on netkit, on the fast path; the CNI masquerades what leaves the pod range."""
    with fast(layout="routed", cni_masquerade=True, pod_kind=request.param) as made:
        yield made


def host_device(pod: LabPod) -> Device:
    """Return the interface of a pod on its node, as the agent sees it."""
    with pod.node.entered():
        devices = {device.name: device for device in read_network().devices}
    return devices[pod.host_interface]


@contextmanager
def programs_of_netkit(testbed: Testbed, pod: LabPod) -> Iterator[None]:
    """Attach programs at netkit's own hooks of a pod, as a CNI does; they let all packets pass.

    The agent of that node starts anew with them, and once more without them.
    """
    node, cluster = pod.node, testbed.cluster
    cluster.stop(node)
    with ExitStack() as links:
        program = syscall.get(PinRoot(node.pin_root).current / "programs" / "egress_l3")
        links.callback(os.close, program)
        with node.entered():
            for hook in Hook:
                kind = netkit.ATTACH_TYPES[hook]
                made = syscall.link_create(program, pod.host_end.index, kind)
                links.callback(os.close, made)
        cluster.start(node)
        yield
        cluster.stop(node)
    cluster.start(node)


def test_the_pods_are_on_netkit(testbed: Testbed) -> None:
    for pod in testbed.lab.pods:
        device = host_device(pod)
        assert (device.kind, device.has_ethernet, device.peer_elsewhere) == ("netkit", True, True)
        assert (device.queue, device.drops) == ("noqueue", False)


@BACKENDS
def test_a_pods_connections_to_a_service_are_fast_from_the_first_packet_to_the_last(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    """By its ClusterIP; a reply leaves the other pod and comes into this one past netfilter."""
    nodes = testbed.lab.nodes if backend == 2 else testbed.lab.nodes[:1]
    counts = [Counts(node, family) for node in nodes]
    for _ in range(5):
        answer = ask(testbed.pod, ONE[backend].vip(family), 80, transport)
        assert answer.pod == testbed.lab.pods[backend].name
    for of_node in counts:
        of_node.all_fast(least=50 if transport == "tcp" else 10)


@OTHERS
def test_packets_between_pods_without_a_service_are_fast(
    testbed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    counts = Counts(testbed.node, family)
    pod = testbed.lab.pods[backend]
    for _ in range(5):
        assert ask(testbed.pod, pod.address(family), 8080, transport).pod == pod.name
    counts.all_fast(least=50 if transport == "tcp" else 10)


@OTHERS
def test_large_data_is_fast_and_arrives_whole(testbed: Testbed, family: int, backend: int) -> None:
    """In packets of up to 64 kB, which only the last interface may cut."""
    counts = Counts(testbed.node, family)
    for verb in ("fetch", "deliver"):
        with connect(testbed.pod, ONE[backend].vip(family), 80) as conversation:
            assert getattr(conversation, verb)(_BIG)
    counts.all_fast(least=30)


def test_packets_go_into_a_pod_past_its_interface(testbed: Testbed, family: int) -> None:
    """But for one now and then, by which the kernel learns that its neighbour is in use."""
    pod = testbed.lab.pods[1]
    with connect(testbed.pod, ONE[1].vip(family), 80) as conversation:
        conversation.who()
        before = packets_by_port(pod)
        assert all(conversation.echo(b"question %d" % number) for number in range(50))
        assert packets_by_port(pod) - before < 25


@pytest.mark.parametrize("which", OUTSIDE)
def test_a_client_outside_reaches_a_node_port_by_the_fast_path(
    testbed: Testbed, family: int, transport: Protocol, which: str
) -> None:
    counts = Counts(testbed.node, family)
    ask(testbed.client, testbed.node.address(family), OUTSIDE[which].node_port, transport)
    counts.all_fast()


def test_a_process_of_the_node_reaches_a_pod_through_a_service(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    for backend in (0, 2):
        answer = ask(testbed.node, ONE[backend].vip(family), 80, transport)
        assert answer.pod == testbed.lab.pods[backend].name


def test_an_interface_with_programs_of_netkit_is_served_by_the_stack(testbed: Testbed) -> None:
    """The fast path would bypass them; the doctor names both."""
    pod, node = testbed.pod, testbed.node
    with programs_of_netkit(testbed, pod):
        with node.entered():
            listed = list(foreign_programs(PinRoot(node.pin_root), [host_device(pod)]))
        assert [(program.hook, program.attach) for program in listed] == [
            ("ingress", "netkit"),
            ("egress", "netkit"),
        ]
        for family in FAMILIES:
            for transport in TRANSPORTS:
                counts = Counts(node, family)
                for backend in (0, 1, 2):
                    answer = ask(pod, ONE[backend].vip(family), 80, transport)
                    assert answer.pod == testbed.lab.pods[backend].name
                    assert answer.remote.endswith(":80")
                for of in (OUTSIDE["local"], OUTSIDE["masqueraded"]):
                    to = node.address(family), of.node_port
                    assert ask(testbed.client, *to, transport).pod == pod.name
                by_fast_path, forwarded, invalid = counts.since()
                assert (by_fast_path, invalid, forwarded > 0) == (0, 0, True)
