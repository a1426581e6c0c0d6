"""A lab on the fast path, with netfilter rules that drop packets that conntrack calls invalid.

With such a rule a connection must bypass conntrack completely or not at all: if only its end passes
conntrack, that end is invalid. So the tests count packets on the fast path, packets of pods that
netfilter forwarded, and invalid packets.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.testbed import (
    API,
    API_PORTS,
    FAMILIES,
    LOCAL,
    ONE,
    WEB,
    Testbed,
    built_testbed,
    objects,
)

FAST = ("--fast-path",)
OUTSIDE = {"local": LOCAL, "masqueraded": ONE[0], "masqueraded to another node": ONE[2]}
"""Services with backends of this node and of another, to be asked by a NodePort."""

_TOOLS = {4: "iptables", 6: "ip6tables"}


def services(testbed: Testbed) -> None:
    """Create a Service for each pod, and one that all pods serve."""
    pods = testbed.lab.pods
    every = [objects(WEB, pods), objects(LOCAL, pods[:1], externalTrafficPolicy="Local")]
    every += [objects(API, testbed.lab.nodes[1:], API_PORTS)]
    every += [objects(one, [pod]) for one, pod in zip(ONE, pods, strict=True)]
    testbed.cluster.put("services", *(each for one in every for each in one))


def forbid_invalid(node: LabNode) -> None:
    """Drop invalid packets in FORWARD, and count the other packets of pods.

    Neighbour solicitations are not counted: a bridge floods them, and netfilter sees them there.
    """
    solicitation = ["-p", "icmpv6", "--icmpv6-type", "neighbour-solicitation"]
    node.run(["ip6tables", "-w", "-A", "FORWARD", *solicitation, "-j", "ACCEPT"])
    for family, pods in node.pod_cidrs.items():
        for rule in (
            ["-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"],
            ["-s", str(pods), "-j", "ACCEPT"],
            ["-d", str(pods), "-j", "ACCEPT"],
        ):
            node.run([_TOOLS[family], "-w", "-A", "FORWARD", *rule])


@contextmanager
def fast(**network: Any) -> Iterator[Testbed]:
    """Build a lab with agents that use the fast path, and with such rules on the nodes."""
    with built_testbed(**network) as testbed:
        for node in testbed.lab.nodes:
            forbid_invalid(node)
            node.serve(6443)
        services(testbed)
        testbed.cluster.options = FAST
        testbed.cluster.start()
        for node in testbed.lab.nodes:
            assert "the fast path is not used" not in testbed.cluster.agents[node.name].log
        yield testbed


@contextmanager
def another_program(testbed: Testbed, pod: LabPod) -> Iterator[None]:
    """Attach a program to the host's interface of a pod, as a CNI does; it lets all frames pass.

    The agent of that node starts anew with it, and once more without it.
    """
    node, cluster = pod.node, testbed.cluster
    program = PinRoot(node.pin_root).current / "programs" / "egress_l3"
    cluster.stop(node)
    node.run(["tc", "qdisc", "add", "dev", pod.host_interface, "clsact"])
    words = ["tc", "filter", "add", "dev", pod.host_interface, "egress", "protocol", "all"]
    node.run([*words, "bpf", "da", "pinned", str(program)])
    cluster.start(node)
    try:
        yield
    finally:
        cluster.stop(node)
        node.run(["tc", "qdisc", "del", "dev", pod.host_interface, "clsact"])
        cluster.start(node)


class Download:
    """A download that has begun, and waits with a full buffer of its client."""

    def __init__(self, opened: OpenConnection, size: int, name: str = "download") -> None:
        self._socket, self._size, self._name = opened.socket, size, name
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._socket.sendall(b"send %d\n" % size)
        self._received = len(self._socket.recv(1 << 12))
        self.port = str(self._socket.getsockname()[1])

    def goes_on(self) -> bool:
        """True if the connection has not been reset until now."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0

    def finish(self) -> None:
        """Receive the rest; assert that it is all there."""
        try:
            while self._received < self._size and (more := self._socket.recv(1 << 16)):
                self._received += len(more)
        except OSError as error:
            message = f"{self._name}: {error} after {self._received} of {self._size} bytes"
            raise AssertionError(message) from error
        assert self._received == self._size


@contextmanager
def downloads_from_outside(testbed: Testbed) -> Iterator[list[tuple[int, Download]]]:
    """Begin a download from each kind of Service over each family: family and download.

    An error gets a note with what the node knows of the connections.
    """
    node = testbed.node
    with ExitStack() as stack:
        downloads = []
        for family, (kind, of) in product(FAMILIES, OUTSIDE.items()):
            to = node.address(family), of.node_port
            opened = stack.enter_context(connect(testbed.client, *to))
            downloads.append((family, Download(opened, 8 << 20, f"{kind} over IPv{family}")))
        try:
            yield downloads
        except AssertionError as error:
            error.add_note(testbed.cluster.command(node, "maps", "dump", "connections").stdout)
            for family in FAMILIES:
                error.add_note(node.run(["conntrack", "-L", "-f", f"ipv{family}"]).stdout)
            error.add_note(testbed.cluster.agents[node.name].log)
            raise


def fast_packets(node: LabNode) -> int:
    """Count the packets that took the fast path on a node."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        table = pinned.map("counters")
        record = pinned.layout.maps["counters"].value
        raw, size = table.lookup(bytes(4)) or b"", table.cpu_value_size
        return sum(
            int(record.unpack(raw[at : at + size])["fast_forwarded"])
            for at in range(0, len(raw), size)
        )
    finally:
        pinned.close()


def packets_by_port(pod: LabPod) -> int:
    """Return how many packets the node's interface of a pod has sent."""
    shown = pod.node.run(["ip", "-json", "-stats", "link", "show", pod.host_interface]).stdout
    return int(json.loads(shown)[0]["stats64"]["tx"]["packets"])


class Counts:
    """The counts of netfilter and the fast path on a node from now on."""

    def __init__(self, node: LabNode, family: int) -> None:
        self._node, self._family = node, family
        self._before = self._now()

    def _now(self) -> tuple[int, int, int]:
        listed = self._node.run([f"{_TOOLS[self._family]}-save", "-c"]).stdout
        invalid = forwarded = 0
        for count, rule in re.findall(r"^\[(\d+):\d+\] -A FORWARD (.*)$", listed, re.MULTILINE):
            if "INVALID" in rule:
                invalid += int(count)
            elif "icmpv6-type" not in rule:
                forwarded += int(count)
        return fast_packets(self._node), forwarded, invalid

    def since(self) -> tuple[int, int, int]:
        """Return packets by the fast path, forwarded by netfilter, and invalid."""
        return tuple(  # type: ignore[return-value]
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )

    def all_fast(self, least: int = 2) -> None:
        """Assert that at least so many packets were fast, and that netfilter saw none."""
        by_fast_path, forwarded, invalid = self.since()
        text = f"{by_fast_path} packets fast, {forwarded} forwarded, {invalid} invalid"
        assert by_fast_path >= least, text
        assert (forwarded, invalid) == (0, 0), text
