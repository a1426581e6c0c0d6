"""Cables of the lab made to behave as wires between real interfaces.

Between namespaces the kernel hands over what no wire could carry: segments of 64 KiB, and checksums
that nobody has computed. XDP in native mode takes neither, and veth hands over frames of XDP only
where the other end is ready for them. So on the cables to the switch senders compute their
checksums and cut their segments (as interfaces do), and all ends use GRO: in all modes alike, or
what they are compared with would do less.

What XDP gives back on the interface where it came in, veth leaves lying until the next frame that
comes otherwise, unless the other end runs an XDP program itself (``veth_xdp_flush``). So where node
1 does that, its port of the switch has a program of two instructions.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from bpfsvc.bench.packets.frameprograms import ATTACH_XDP, PASS, load
from bpfsvc.bench.packets.instructions import Code
from bpfsvc.datapath import bpf
from bpfsvc.lab import links
from bpfsvc.lab.node import Node
from bpfsvc.lab.topology import Client, Lab


def make_real(lab: Lab) -> None:
    """Set the offloads of all machines of a lab, and of the switch."""
    machines: tuple[Node | Client, ...] = (*lab.nodes, lab.client)
    for machine in machines:
        for feature in ("tx", "tso", "gso"):
            machine.uplink.offload(feature, False)
        machine.uplink.offload("gro", True)
        # The switch calls its ports after whom they lead to.
        links.find(lab.switch, machine.name).offload("gro", True)


def take_back(lab: Lab, stack: ExitStack) -> None:
    """Let the switch take what XDP of node 1 gives back, until ``stack`` ends."""
    code = Code()
    code.leave(PASS)
    program = load("take_back", code.finish())
    with lab.switch.entered():
        link = bpf.link_create(program, lab.switch.index(lab.nodes[0].name), ATTACH_XDP)
    os.close(program)
    stack.callback(os.close, link)
