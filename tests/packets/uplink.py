"""A node with an uplink for the tests of XDP: frames arrive there, and XDP forwards them.

The uplink is a cable between namespaces of the test, with routes and neighbours, because XDP asks
the kernel for the next hop. The result must equal what tc makes of the same packet.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import xdp
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.namespace import Namespace
from tests.packets.node import Node
from tests.packets.peers import ALL_PEERS, Peers

SERVED = [peers for peers in ALL_PEERS if peers.protocol != "SCTP"]

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
    """A node with two interfaces: ``near``, where all frames arrive, and ``far``."""

    def __init__(self, node: Node, near: End, far: End) -> None:
        self.node, self.near, self.far = node, near, far

    def serve(self, *ends: End, redirect: bool = False, takes: bool = True) -> None:
        """Attach XDP to these interfaces, and to no others.

        ``redirect``: XDP never uses XDP_TX. ``takes``: they send what is redirected to them.
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
        """Make the frame in which a packet arrives."""
        return bytes(Ether(src=CLIENT, dst=self.near.mac) / packet)

    def run(self, frame: bytes) -> tuple[int, bytes]:
        """Run XDP on a frame; return the verdict and the frame after it."""
        context = struct.pack("=IIIIII", 0, len(frame), 0, self.near.index, 0, 0)
        return syscall.program_test_run(self.node.pinned.program("xdp"), frame, context=context)

    def passes(self, packet: Packet) -> bool:
        """True if XDP passes a packet to the stack unchanged."""
        return self.passes_frame(self.frame(packet))

    def passes_frame(self, frame: bytes) -> bool:
        """True if XDP passes a frame to the stack unchanged."""
        verdict, after = self.run(frame)
        assert after == frame or verdict != PASS, "XDP passed a changed frame"
        return verdict == PASS

    def sends(self, packet: Packet, verdict: int = TX) -> Ether:
        """Run XDP on a packet that it must send; return the frame that leaves."""
        found, after = self.run(self.frame(packet))
        assert found == verdict, f"not sent: {packet.summary()}, but {found}"
        return Ether(after)

    def by_tc(self, packet: Packet) -> bytes:
        """Return the packet that leaves the node when tc and the stack forward it."""
        out = self.node.forward(packet)
        if IP in out:
            out.ttl -= 1
            del out.chksum
        else:
            out.hlim -= 1
        return bytes(out)


@contextmanager
def uplink(node: Node) -> Iterator[Uplink]:
    """Make the cables, and enter the namespace of the node for the duration of the context."""
    here, there = Namespace("xdp-node"), Namespace("xdp-far")
    before = node.interface
    try:
        near, _ = links.cable(here, "near", there, "near")
        far, _ = links.cable(here, "far", there, "far")
        for end, net in ((near, "50"), (far, "51")):
            for text in (f"192.168.{net}.11/24", f"fd{net}::11/64"):
                interface = ipaddress.ip_interface(text)
                links.add_address(end, interface.ip, interface.network.prefixlen)
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
            # Replies to clients that are pods leave by the interface that requests came by.
            ("10.244.1.0/24", near, "192.168.50.12"),
            ("fd44:0:0:1::/64", near, "fd50::12"),
        ):
            links.add_route(here, ipaddress.ip_network(to), end, ipaddress.ip_address(via))
        with here.entered():
            # The driver reports a queue only while XDP is attached.
            node.root.links.mkdir(exist_ok=True)
            for end in (near, far):
                xdp.attach(node.root, end.index, node.pinned.program("xdp"))
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


def connected(xdp_uplink: Uplink, peers: Peers, masquerade: bool = True) -> str:
    """Establish a connection; return the client as the backend sees it."""
    peers.service(xdp_uplink.node, [peers.backend], masquerade=masquerade)
    return peers.connect(xdp_uplink.node, peers.external, peers.vip, peers.backend)
