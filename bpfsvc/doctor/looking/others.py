"""Who else is here: devices, programs on the interfaces, and names of what is loaded."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bpfsvc.datapath import census, tcx, xdp
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Device, Network, choose
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.datapath.pins import PinRoot, is_bpffs
from bpfsvc.doctor.judging.others import ANTREA_SERVICES, CILIUM_PINS
from bpfsvc.doctor.sightings import Attached, Others

_ROUTES = Path("/proc/net/route")
_BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
_OUR_MAPS = frozenset({"connections", "new_connections", "backend_counter"})
"""Maps that ours use on every interface, and no other program together; a name has 15 letters."""


def look(talk: Conversation, network: Network, root: PinRoot, patterns: Sequence[str]) -> Others:
    """Look; ``patterns`` choose the interfaces as ``--devices`` does."""
    names = frozenset(device.name for device in network.devices)
    programs, maps = census.program_names(), census.map_names()
    return Others(
        devices=names,
        attached=tuple(attached(talk, root, choose(network.devices, patterns))),
        loaded=None if programs is None or maps is None else programs | maps,
        pinned=frozenset(_pins()),
        gateway=gateway_of(_ROUTES.read_text(), ANTREA_SERVICES),
    )


def attached(talk: Conversation, root: PinRoot, devices: Sequence[Device]) -> Iterator[Attached]:
    """Give the programs on ``devices`` that are not those of the agent at ``root``."""
    details, mine = read_details(talk), xdp.attached(root)
    for device in devices:
        found = details[device.index].xdp if device.index in details else ()
        for program in found:
            if program == mine.get(device.index):
                continue
            yield Attached(device.name, "xdp", "xdp", census.program_name(program))
        for hook in Hook:
            try:
                yield from _on_hook(root, device, hook)
            except DeviceGone:
                continue


def _on_hook(root: PinRoot, device: Device, hook: Hook) -> Iterator[Attached]:
    mine = tcx.program_id(root, device.index, hook)
    for program in census.tcx_programs(device.index, hook):
        if program != mine:
            yield Attached(
                device.name,
                str(hook),
                "tcx",
                census.program_name(program),
                bpfsvc=census.maps_of(program) >= _OUR_MAPS,
            )
    for each in tc.attached(device.index, hook):
        if each.chain:
            continue
        if not each.ours:  # a filter of ours is replaced, whichever agent left it
            yield Attached(device.name, str(hook), "clsact", each.name, each.kind, each.priority)


def _pins() -> Iterator[str]:
    if _BPF_FILE_SYSTEM.is_dir() and is_bpffs(_BPF_FILE_SYSTEM):
        yield from (pin for pin in CILIUM_PINS if (_BPF_FILE_SYSTEM / pin).exists())


def gateway_of(routes: str, address: str) -> str:
    """Read ``/proc/net/route``: the interface of the route to a single address, or ""."""
    wanted = f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"
    rows = (line.split() for line in routes.splitlines()[1:])
    return next((row[0] for row in rows if row[1] == wanted), "")
