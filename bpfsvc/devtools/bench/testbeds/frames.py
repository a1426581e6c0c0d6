"""A testbed whose wire carries frames, not packets of sockets.

One veth connects the node's uplink with a namespace that is everything else: clients, and the next
node with its pods. Frames are put on it as a driver receives them (XDP frames, by test runs); if a
socket sent them, veth would copy each before XDP sees it, and what is measured would say nothing
about a real interface. veth accepts frames where its other end uses GRO.

Node and wire share a core: what a packet costs is what this core does until it is gone.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.clocks import cpu_seconds, softirq_thread
from bpfsvc.devtools.bench.packets.flows import TTL, Flow, Place
from bpfsvc.devtools.bench.packets.test_runs import live
from bpfsvc.devtools.bench.packets.xdp_programs import (
    DROP,
    SEND_BACK,
    Counter,
    load,
    payload,
    sender,
)
from bpfsvc.devtools.lab import links, sandbox
from bpfsvc.devtools.lab.capture import Capture, Frame
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS

UDP = socket.IPPROTO_UDP
NODE, NEXT_NODE, CLIENT = "192.168.50.11", "192.168.50.12", "192.168.50.77"
BACKEND = Place("10.244.2.11", 8080)
"""In a pod of the next node."""

FLOWS = 64
_FIRST_PORT = 20_000
_LAN = 24


class Lost(BpfsvcError):
    """Frames did not arrive, or not as what they should have become."""


class FrameTestbed(Environment):
    """A node with the name node-1 and its wire, set up to forward to a backend."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _build(self) -> None:
        prefix = f"{self._name}-"
        for tree in (sandbox.CGROUP_ROOT / self._name, sandbox.BPF_ROOT / self._name):
            tree.mkdir()
            self._stack.callback(tree.rmdir)
        self._wire = Namespace("wire", prefix=prefix)
        self._stack.callback(self._wire.close)
        self.node = LabNode(
            1,
            prefix=prefix,
            families=(4,),
            cgroup=sandbox.CGROUP_ROOT / self._name / "node-1",
            pin_root=sandbox.BPF_ROOT / self._name / "node-1",
            holds_pods=False,
        )
        self._stack.callback(self.node.close)
        self._connect()

    def _connect(self) -> None:
        self._end, self.node.uplink = links.cable(self._wire, "eth0", self.node, "eth0")
        for end in (self._end, self.node.uplink):
            end.offload("gro", True)
        # As on any node with a kubelet: conntrack sees what is forwarded.
        self.node.masquerade_pods([CLUSTER_CIDRS[4]])
        # A router would redirect senders that could reach the next node: here all is one wire.
        for scope in ("all", "eth0"):
            self.node.sysctl(f"net.ipv4.conf.{scope}.rp_filter", 0)
            self.node.sysctl(f"net.ipv4.conf.{scope}.send_redirects", 0)
        uplink = self.node.uplink
        links.add_address(uplink, ipaddress.ip_address(NODE), _LAN)
        links.await_address(uplink, ipaddress.ip_address(NODE))
        for neighbour in (NEXT_NODE, CLIENT):
            links.add_neighbour(uplink, ipaddress.ip_address(neighbour), self._end.mac)
        next_node = ipaddress.ip_address(NEXT_NODE)
        links.add_route(self.node, links.default_route(4), uplink, next_node)
        links.add_route(self.node, ipaddress.ip_network("10.244.2.0/24"), uplink, next_node)

    @property
    def link(self) -> bytes:
        """The hardware addresses of what is sent to the node: its own, then the wire's."""
        return _mac(self.node.uplink.mac) + _mac(self._end.mac)

    def routed(self) -> int:
        """Return how many packets the node's IP layer has forwarded so far."""
        with self.node.entered():
            rows = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (row.split() for row in rows if row.startswith("Ip:"))
        return int(values[names.index("ForwDatagrams")])

    # -- single packets, by a socket --------------------------------------------------------------

    def open_flows(self, to: Place, *, masqueraded: bool) -> None:
        """Send a packet of each flow to the backend and a reply back; both must be right.

        Connections are known from then on, as they are where there is traffic.
        """
        with (
            Capture(self._wire, "eth0") as capture,
            self._wire.socket(socket.AF_PACKET, socket.SOCK_RAW) as out,
        ):
            out.bind(("eth0", 0))
            for port in range(_FIRST_PORT, _FIRST_PORT + FLOWS):
                self._open_flow(capture, out, Flow(Place(CLIENT, port), to, UDP), masqueraded)

    def _open_flow(
        self, capture: Capture, out: socket.socket, flow: Flow, masqueraded: bool
    ) -> None:
        inwards, outwards = self.link, self.link[6:] + self.link[:6]
        data = payload(flow.source.port)
        out.send(flow.frame(link=inwards, payload=data))
        frame = _received(capture, data, f"a packet of {flow}")
        source = flow.source
        if masqueraded:
            source = Place(NODE, int.from_bytes(frame[34:36], "big"))
        routed = Flow(source, BACKEND, UDP)
        if frame != routed.frame(link=outwards, ttl=TTL - 1, payload=data):
            raise Lost(f"a packet of {flow} does not become one of {routed}")
        reply = data[::-1]
        out.send(routed.reply.frame(link=inwards, payload=reply))
        frame = _received(capture, reply, f"the reply to {flow}")
        if frame != flow.reply.frame(link=outwards, ttl=TTL - 1, payload=reply):
            raise Lost(f"the reply to {flow} does not come from where the packet was sent to")

    # -- many, as frames --------------------------------------------------------------------------

    @contextmanager
    def frames_to(self, to: Place, at: str) -> Iterator[Frames]:
        """Make all ready for frames to ``to`` that are counted where they arrive.

        ``at``: ``drop``, the node itself, which drops them; ``bounce``, the wire, to which the node
        sends them back as they are; anything else, the wire, when they are for the backend.
        """
        with ExitStack() as stack:
            flow = Flow(Place(CLIENT, _FIRST_PORT), to, UDP)
            program = load("sender", sender(flow, FLOWS, self.link))
            stack.callback(os.close, program)
            if at in ("drop", "bounce"):
                verdict = DROP if at == "drop" else SEND_BACK
                with self.node.entered():
                    own = Counter(self.node.uplink.index, to.port, verdict)
                stack.enter_context(own)
            with self._wire.entered():
                arrivals = stack.enter_context(
                    Counter(self._end.index, to.port if at == "bounce" else BACKEND.port)
                )
            if at == "drop":
                arrivals = own
            frame = flow.frame(link=self.link, payload=payload(_FIRST_PORT))
            yield Frames(self, program, frame, arrivals)

    def send(self, program: int, frame: bytes, frames: int) -> int:
        """Have an XDP program send so many, made of ``frame``; return ns for each."""
        with self._wire.entered():
            return live(program, frame, frames, self._end.index)


class Frames:
    """Frames of ``FLOWS`` flows, ready to be sent; made by ``FrameTestbed.frames_to``."""

    def __init__(
        self, testbed: FrameTestbed, program: int, frame: bytes, arrivals: Counter
    ) -> None:
        self._testbed, self._program, self._frame = testbed, program, frame
        self._arrivals = arrivals

    def send(self, frames: int) -> float:
        """Send so many; return ns of this thread's core for each. Raises Lost if some are missing.

        The thread must have no other core to run on. What the frames cost is spent in interrupts
        while it sends, and in the core's softirq thread.
        """
        (core,) = os.sched_getaffinity(0)
        helper = softirq_thread(core)
        helped = cpu_seconds(helper) if helper else 0.0
        before, _ = self._arrivals.seen()
        nanoseconds = float(self._testbed.send(self._program, self._frame, frames))
        try:
            wait(lambda: self._arrivals.seen()[0] - before >= frames, "all frames", timeout=0.2)
        except TimeoutError as error:
            arrived = self._arrivals.seen()[0] - before
            raise Lost(f"{arrived} of {frames} frames arrived") from error
        if helper:
            nanoseconds += (cpu_seconds(helper) - helped) * 1e9 / frames
        return nanoseconds


def _received(capture: Capture, data: bytes, about: str) -> bytes:
    def wanted(frame: Frame) -> bool:
        return not frame.outgoing and frame.data.endswith(data)

    try:
        return capture.wait(wanted).data
    except TimeoutError as error:
        raise Lost(f"{about} does not come out of the node") from error


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
