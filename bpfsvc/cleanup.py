"""Taking everything away again: the exact opposite of what an agent does.

In the order in which traffic notices least: first the hooks, so that no packet meets half a data
path, then what they used. Connections through Services end; all others go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.datapath import attachment, sockets, sysctls, xdp
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.errors import BpfsvcError


def cleanup(pin_root: Path) -> Iterator[str]:
    """Remove everything; yield a line for each thing done. Raises if an agent still runs."""
    root = PinRoot(pin_root)
    lock = root.lock() if pin_root.is_dir() else None
    try:
        yield from _detach(root)
        links = sockets.detach(root)
        if links:
            yield f"detached {links} socket programs"
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
    talk = Conversation()
    try:
        devices = read_network(talk).devices
    finally:
        talk.close()
    for device in devices:
        # First: the programs at the tc hooks take what it leaves.
        if xdp.detach(root, device.index):
            yield f"detached XDP from {device.name}"
        try:
            if attachment.detach(root, device.index):
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
        row = record.unpack(pinned.map("settings").lookup(bytes(4)) or bytes(record.size))
    finally:
        pinned.close()
    text = row.get("reserved_ports", b"")
    ports = text.rstrip(b"\0").decode() if isinstance(text, bytes) else ""
    if ports:
        sysctls.release_ports(sysctls.parse_ports(ports))
    return ports
