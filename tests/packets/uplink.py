"""The vocabulary of tests of the edge: frames that come by an uplink, and what XDP makes of them.

The uplink is a cable in namespaces of the test's own, with routes and neighbours, because XDP asks
the kernel where to send. What tc makes of the same packet is what must come out.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.datapath import bpf, xdp
from bpfsvc.lab import links
from bpfsvc.lab.links import End
from bpfsvc.lab.namespace import Namespace
from tests.packets.node import Node
from tests.packets.scene import SCENES, Scene

SERVED = [scene for scene in SCENES if scene.protocol != "SCTP"]

PASS, TX, REDIRECT = 2, 3, 4
"""Verdicts of XDP."""

ROUTER = "02:00:00:00:00:12"
"""The next hop to the backends; as 192.168.50.12 and fd50::12."""
CLIENT = "02:00:00:00:00:09"
OTHER = "02:00:00:00:00:13"
"""The next hop by the second uplink; as 192.168.51.13 and fd51::13."""

NEIGHBOURS = {
    "192.168.50.12": ROUTER,
    "fd50::12": ROUTER,
    "192.168.50.9": CLIENT,
    "fd50::9": CLIENT,
    "192.168.51.13": OTHER,
    "fd51::13": OTHER,
}


class Uplink:
    """A node with two interfaces: ``near``, by which all frames come, and ``far``."""

    def __init__(self, node: Node, near: End, far: End) -> None:
        self.node, self.near, self.far = node, near, far

    def serve(self, *ends: End, redirect: bool = False, takes: bool = True) -> None:
        """Let XDP serve these interfaces, and no others.

        ``redirect``: never by XDP_TX. ``takes``: they send what is redirected to them.
        """
        record = self.node.pinned.layout.maps["uplinks"].value
        self.node.pinned.map("uplinks").replace(
            {
                struct.pack("=I", end.index): record.pack(
                    {
                        "ifindex": end.index,
                        "mac": bytes.fromhex(end.mac.replace(":", "")),
                        "redirect": redirect,
                        "takes": takes,
                    }
                )
                for end in ends
            }
        )

    def frame(self, packet: Packet) -> bytes:
        """Make the frame in which a packet comes."""
        return bytes(Ether(src=CLIENT, dst=self.near.mac) / packet)

    def run(self, frame: bytes) -> tuple[int, bytes]:
        """Give a frame to XDP; return its verdict and the frame as it left it."""
        context = struct.pack("=IIIIII", 0, len(frame), 0, self.near.index, 0, 0)
        return bpf.program_test_run(self.node.pinned.program("edge"), frame, context=context)

    def passes(self, packet: Packet) -> bool:
        """Whether XDP leaves a packet to the stack, as it came."""
        return self.passes_frame(self.frame(packet))

    def passes_frame(self, frame: bytes) -> bool:
        """The same for the bytes of a whole frame."""
        verdict, after = self.run(frame)
        assert after == frame or verdict != PASS, "what is passed on is as it came"
        return verdict == PASS

    def sends(self, packet: Packet, verdict: int = TX) -> Ether:
        """Give a packet that XDP must send; return the frame that leaves."""
        found, after = self.run(self.frame(packet))
        assert found == verdict, f"not sent: {packet.summary()}, but {found}"
        return Ether(after)

    def by_tc(self, packet: Packet) -> bytes:
        """Give the packet that leaves the node when tc and the stack forward it."""
        out = self.node.forward(packet)
        if IP in out:
            out.ttl -= 1
            del out.chksum
        else:
            out.hlim -= 1
        return bytes(out)


@contextmanager
def uplink(node: Node) -> Iterator[Uplink]:
    """Lay the cables, and move into the namespace of the node for as long as this lasts."""
    here, there = Namespace("edge-node"), Namespace("edge-wire")
    before = node.interface
    try:
        near, _ = links.cable(here, "near", there, "near")
        far, _ = links.cable(here, "far", there, "far")
        for end, net in ((near, "50"), (far, "51")):
            for text in (f"192.168.{net}.11/24", f"fd{net}::11/64"):
                at = ipaddress.ip_interface(text)
                links.add_address(end, at.ip, at.network.prefixlen)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            here.sysctl(key, 1)
        for address, mac in NEIGHBOURS.items():
            end = far if "51" in address else near
            links.add_neighbour(end, ipaddress.ip_address(address), mac)
        for to, end, via in (
            ("10.244.2.0/24", near, "192.168.50.12"),
            ("10.244.3.0/24", far, "192.168.51.13"),
            ("fd44:0:0:2::/64", near, "fd50::12"),
            ("fd44:0:0:3::/64", far, "fd51::13"),
            # Clients that are pods come back where they came from.
            ("10.244.1.0/24", near, "192.168.50.12"),
            ("fd44:0:0:1::/64", near, "fd50::12"),
        ):
            links.add_route(here, ipaddress.ip_network(to), end, ipaddress.ip_address(via))
        with here.entered():
            # The driver tells of a queue only where XDP is.
            node.root.links.mkdir(exist_ok=True)
            for end in (near, far):
                xdp.attach(node.root, end.index, node.pinned.program("edge"))
            node.interface = near.index
            node.reset()
            made = Uplink(node, near, far)
            made.serve(near, far)
            yield made
            made.serve()
            for end in (near, far):
                xdp.detach(node.root, end.index)
    finally:
        node.interface = before
        here.close()
        there.close()


def connected(wire: Uplink, scene: Scene, masquerade: bool = True) -> str:
    """Establish a connection; give the client as the backend sees it."""
    scene.service(wire.node, [scene.backend], masquerade=masquerade)
    return scene.connect(wire.node, scene.stranger, scene.vip, scene.backend)
