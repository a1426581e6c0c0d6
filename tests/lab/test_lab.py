"""The lab without bpfsvc: other tests rely on what these tests show."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.capture import Capture, Frame
from bpfsvc.devtools.lab.dial import ask, connect, tally
from bpfsvc.devtools.lab.namespace import LabError
from bpfsvc.devtools.lab.topology import Lab

NETWORKS: list[dict[str, Any]] = [
    {"layout": "routed"},
    {"layout": "routed", "overlay": "vxlan"},
    {"layout": "bridge", "overlay": "vxlan"},
    {"layout": "bridge", "overlay": "vxlan", "cni_masquerade": True},
    {"layout": "bridge", "overlay": "vxlan", "families": (6,)},
]
FAMILIES = (4, 6)
TRANSPORTS = ("tcp", "udp")


def _words(network: dict[str, Any]) -> str:
    return "-".join(
        str(value) if name != "cni_masquerade" else "masquerade" for name, value in network.items()
    )


@pytest.fixture(scope="module", params=NETWORKS, ids=_words)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(**request.param) as built:
        built.serve()
        for node in built.nodes:
            node.serve(9090)
        built.client.serve(9090)
        yield built


@pytest.fixture(scope="module")
def routed() -> Iterator[Lab]:
    with Lab("routed") as built:
        built.serve()
        yield built


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].strip("[]")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("backend", [0, 1, 2], ids=["itself", "same node", "other node"])
def test_pod_reaches_pod_with_its_own_address(lab: Lab, backend: int, transport: Any) -> None:
    """A pod reaches every pod, and the other sees the address of the pod."""
    pod, other = lab.pods[0], lab.pods[backend]
    for family in lab.families:
        answer = ask(pod, other.address(family), 8080, transport)
        assert answer.pod == other.name
        assert _host(answer.peer) == pod.address(family)
        assert answer.peer == answer.own
        assert answer.local == answer.remote


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pod_reaches_nodes(lab: Lab, transport: Any) -> None:
    """A pod reaches its own node and the other; a masquerading CNI hides it from the other."""
    pod = lab.pods[0]
    for family in lab.families:
        own, other = (ask(pod, node.address(family), 9090, transport) for node in lab.nodes)
        assert (own.pod, other.pod) == ("node-1", "node-2")
        assert _host(own.peer) == pod.address(family)
        masked = lab.nodes[0].address(family) if lab.cni_masquerade else pod.address(family)
        assert _host(other.peer) == masked


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_node_reaches_pods(lab: Lab, transport: Any) -> None:
    """A process on a node reaches pods on both nodes."""
    for family in lab.families:
        for pod in lab.pods:
            assert ask(lab.nodes[0], pod.address(family), 8080, transport).pod == pod.name


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_client_reaches_nodes_with_its_address(lab: Lab, transport: Any) -> None:
    """The client outside reaches the nodes, which see its address."""
    for family in lab.families:
        for node in lab.nodes:
            answer = ask(lab.client, node.address(family), 9090, transport)
            assert (answer.pod, _host(answer.peer)) == (node.name, lab.client.address(family))


def test_client_knows_no_pods(lab: Lab) -> None:
    """The client has no route to pods until it is given one."""
    pod = lab.pods[0]
    for family in lab.families:
        address = pod.address(family)
        assert tally(lab.client, address, 8080, count=1) == {"unreachable": 1}
        lab.client.route(address, via=lab.nodes[0])
        assert tally(lab.client, address, 8080, count=1) == {pod.name: 1}


def test_pod_reaches_outside(lab: Lab) -> None:
    """A packet from a pod out of the cluster has its node's address only if the CNI masquerades."""
    pod = lab.pods[-1]
    if not lab.cni_masquerade:
        for family in lab.families:
            lab.client.route(pod.address(family), via=pod.node)
    for family in lab.families:
        answer = ask(pod, lab.client.address(family), 9090)
        namespace = pod.node if lab.cni_masquerade else pod
        assert _host(answer.peer) == namespace.address(family)


def test_the_switch_shows_netfilter_nothing(routed: Lab) -> None:
    """It stands for a network: what it does is no work of a node, and of no figure of one."""
    table = (
        "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }"
    )
    routed.switch.run(["nft", table])
    try:
        pod = routed.pods[2]
        assert tally(routed.pods[0], pod.address(4), 8080, count=1) == {pod.name: 1}
    finally:
        routed.switch.run(["nft", "flush ruleset"])


def test_big_packets_arrive(lab: Lab) -> None:
    """A megabyte crosses between nodes in either direction, and a datagram as big as fits."""
    pod, other = lab.pods[0], lab.pods[-1]
    for family in lab.families:
        with connect(pod, other.address(family), 8080) as conversation:
            assert conversation.fetch(1 << 20)
            assert conversation.deliver(1 << 20)
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        with pod.socket(kind, socket.SOCK_DGRAM) as sender:
            size = pod.node.pod_mtu - (28 if family == 4 else 48)
            sender.settimeout(2)
            sender.connect((other.address(family), 8080))
            sender.send(b"send %d" % size)
            assert len(sender.recv(1 << 16)) == size


@pytest.mark.parametrize("family", FAMILIES)
def test_vxlan_is_on_the_wire(family: int) -> None:
    """With the overlay, the uplink carries pod traffic only in UDP to port 8472."""
    with Lab("routed", "vxlan") as lab, Capture(lab.nodes[0], "eth0") as capture:
        lab.serve()
        with connect(lab.pods[0], lab.pods[2].address(family), 8080) as conversation:
            assert conversation.fetch(100_000)
    payload = bytes(range(64))
    carriers = [frame for frame in capture.frames() if payload in frame.data]
    assert carriers
    assert all(frame.data[23] == socket.IPPROTO_UDP for frame in carriers)
    assert all(frame.data[36:38] == (8472).to_bytes(2, "big") for frame in carriers)


@pytest.mark.parametrize("family", FAMILIES)
def test_pods_learn_the_path_mtu(family: int) -> None:
    """Pods with an MTU of 1500 learn from their node that the overlay carries less."""
    with Lab("routed", "vxlan", pod_mtu=1500) as lab:
        lab.serve()
        pod, other = lab.pods[0], lab.pods[2]
        with (
            Capture(pod, "eth0") as capture,
            connect(pod, other.address(family), 8080) as conversation,
        ):
            assert conversation.deliver(100_000)
            capture.wait(lambda frame: _is_too_big(frame, family))


@pytest.mark.parametrize("family", FAMILIES)
def test_far_client_has_a_narrow_link(family: int) -> None:
    """The router before the far client reports to nodes that less than 1500 bytes fit."""
    with Lab("routed", far_mtu=1300) as lab:
        node = lab.nodes[0]
        node.serve(9090)
        with (
            Capture(node, "eth0") as capture,
            connect(lab.far, node.address(family), 9090) as conversation,
        ):
            assert conversation.fetch(100_000)
            capture.wait(lambda frame: _is_too_big(frame, family))


def _is_too_big(frame: Frame, family: int) -> bool:
    """True if it is "fragmentation needed" (ICMP 3/4) or "packet too big" (ICMPv6 2/0)."""
    if family == 4:
        return (
            frame.data[12:14] == b"\x08\x00"
            and frame.data[23] == 1
            and frame.data[34:36] == b"\x03\x04"
        )
    return (
        frame.data[12:14] == b"\x86\xdd"
        and frame.data[20] == 58
        and frame.data[54:56] == b"\x02\x00"
    )


def test_capture_sees_both_directions(routed: Lab) -> None:
    """A capture has incoming and outgoing frames, and marks unfinished checksums."""
    pod, other = routed.pods[:2]
    with Capture(routed.nodes[0], pod.host_interface) as capture:
        ask(pod, other.address(), 8080)
        capture.wait(lambda frame: not frame.outgoing and b"who\n" in frame.data)
        answer = capture.wait(lambda frame: frame.outgoing and b'"pod"' in frame.data)
    assert answer.partial


def test_outcomes_have_names(routed: Lab) -> None:
    """Answers are counted by pod; a closed port is "refused"; no host at all is "timeout"."""
    pod, other = routed.pods[0], routed.pods[2]
    assert tally(pod, other.address(), 8080, count=250) == {other.name: 250}
    assert tally(pod, other.address(), 8080, "udp", connected=False) == {other.name: 100}
    assert tally(pod, other.address(), 8081, count=3) == {"refused": 3}
    assert tally(pod, other.address(), 8081, "udp", count=3) == {"refused": 3}
    assert tally(pod, "10.96.0.1", 80, count=1, timeout=0.1) == {"timeout": 1}


@pytest.mark.parametrize("layout", ["routed", "bridge"])
@pytest.mark.parametrize("overlay", [None, "vxlan"])
def test_pods_can_be_added_and_removed(layout: Any, overlay: Any) -> None:
    """A pod with any address is reached from everywhere while it lives, and not afterwards."""
    with Lab(layout, overlay) as lab:
        node = lab.nodes[0]
        before = node.interfaces()
        pod = node.add_pod("svc-a", ["101.76.9.141", "fd99::7"])
        pod.serve()
        assert pod.host_interface in node.interfaces()
        everyone = [pod, *node.pods.values(), *lab.nodes[1].pods.values(), *lab.nodes]
        for family in FAMILIES:
            for namespace in everyone:
                assert ask(namespace, pod.address(family), 8080).pod == "svc-a"
        pod.remove()
        assert node.interfaces() == before
        gone = tally(lab.pods[0], "101.76.9.141", 8080, count=1, timeout=0.2)
        assert set(gone) <= {"timeout", "unreachable"}


@pytest.mark.parametrize("holds_pods", [False, True], ids=["pods outside", "pods below"])
def test_sockets_belong_to_the_cgroup_of_their_node(holds_pods: bool) -> None:
    """Sockets and processes of a node are in its cgroup; those of its pods below, if asked for."""
    with Lab(holds_pods=holds_pods, nodes=1, pods_per_node=1) as lab:
        node, pod = lab.nodes[0], lab.pods[0]
        assert node.cgroup is not None
        cgroup_path = f"/{node.cgroup.relative_to(sandbox.CGROUP_ROOT)}"
        process = node.popen(["sleep", "60"])
        assert f"0::{cgroup_path}\n" in Path(f"/proc/{process.pid}/cgroup").read_text()
        of_pod = f"{cgroup_path}/pods/{pod.name}" if holds_pods else ""
        for namespace, cgroup in ((node, cgroup_path), (pod, of_pod)):
            with namespace.socket(socket.AF_INET) as listener:
                listener.bind(("0.0.0.0", 7777))
                listener.listen()
                shown = namespace.run(["ss", "-tlnH", "--cgroup"]).stdout
            # ss shows the path from the root that it sees, the sandbox's.
            assert re.search(rf":7777 .* cgroup:{cgroup or '/'}\s*$", shown, re.MULTILINE)


@pytest.mark.parametrize("kind", ["connect", "stream", "datagram"])
@pytest.mark.parametrize("family", FAMILIES)
def test_load_counts_successes(routed: Lab, kind: Any, family: int) -> None:
    """A load counts successes by pod, and can be watched and stopped."""
    pod, other = routed.pods[0], routed.pods[2]
    load = pod.load(
        kind, other.address(family), seconds=30, workers=2, connections=2, expected=(other.name,)
    )
    load.more(200)
    result = load.stop()
    assert result.ok >= 200
    assert result.failures == {}
    assert set(result.pods) == {other.name}
    assert 0 < result.latency["50"] <= result.latency["99"] <= result.latency["max"]


def test_load_counts_failures() -> None:
    """A load counts refused, reset or closed connections and wrong answers separately."""
    with Lab(nodes=1) as lab:
        pod, other = lab.pods
        server = other.serve()
        streams = pod.load("stream", other.address(), seconds=30, connections=3, interval=0.01)
        streams.more(20)
        other.end(server)
        assert (
            sum(
                streams.result().failures[kind]
                for kind in ("reset", "closed")
                if kind in streams.result().failures
            )
            == 3
        )
        refused = pod.load("connect", other.address(), count=20)
        assert refused.result().failures == {"refused": 20}
        other.serve()
        wrong = pod.load("connect", other.address(), count=20, expected=("another",))
        assert wrong.result().failures == {"wrong": 20}


def test_mistakes_are_named(routed: Lab) -> None:
    """A wrong layout, a wrong family, a pod that exists, a command that fails."""
    with pytest.raises(LabError, match="no such network"):
        Lab("star")  # type: ignore[arg-type]
    with pytest.raises(LabError, match="families"):
        Lab(families=(5,))
    with pytest.raises(LabError, match="already"):
        routed.nodes[0].add_pod("pod-1-1")
    with pytest.raises(LabError, match="ended with 3"):
        routed.client.run(["sh", "-c", "exit 3"])
