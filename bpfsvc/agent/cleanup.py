"""The removal of all that an agent left in the kernel.

The hooks are removed first, so that no packet meets half of the programs, then their maps.
Connections through Services end then; all other connections go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.agent.flows.drain import drain
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.texts import count_text
from bpfsvc.datapath import sysctl
from bpfsvc.datapath.attach import cgroup, interfaces, tracepoints, xdp
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.datapath.netlink.network import read_network


def cleanup(pin_root: Path, drain_seconds: float = 0.0) -> Iterator[str]:
    """Remove everything; yield a line for each thing done. Raises if an agent still runs.

    ``drain_seconds``: first wait at most so long until connections have ended.
    """
    root = PinRoot(pin_root)
    lock = root.lock() if pin_root.is_dir() else None
    try:
        if drain_seconds:
            yield from drain(root, drain_seconds)
        yield from _detach(root)
        links = cgroup.detach(root) + tracepoints.detach(root)
        if links:
            yield f"detached {count_text(links, 'socket program')}"
        released = _release_ports(root)
        if released:
            yield f"released the reserved ports {released}"
        if pin_root.is_dir():
            root.remove()
            yield f"removed the maps and programs at {pin_root}"
        yield "nothing of bpfsvc is left here"
    finally:
        if lock is not None:
            os.close(lock)


def _detach(root: PinRoot) -> Iterator[str]:
    for device in read_network().devices:
        # XDP first: the programs at the tc hooks serve its packets then.
        if xdp.detach(root, device.index):
            yield f"detached XDP from {device.name}"
        try:
            if interfaces.detach(root, device.index):
                yield f"detached from {device.name}"
        except DeviceGone:
            continue


def _release_ports(root: PinRoot) -> str:
    try:
        pinned = Pinned(root.current)
    except BpfsvcError:
        return ""
    try:
        record = pinned.layout.maps["settings"].value
        entry = record.unpack(pinned.map("settings").lookup(bytes(4)) or bytes(record.size))
    finally:
        pinned.close()
    text = entry.get("reserved_ports", b"")
    ports = text.rstrip(b"\0").decode() if isinstance(text, bytes) else ""
    if ports:
        sysctl.release_ports(sysctl.parse_ports(ports))
    return ports
