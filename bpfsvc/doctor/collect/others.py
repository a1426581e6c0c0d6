"""Collect facts about other programs for Services, and other programs on the interfaces.

``bpfsvc run`` collects these as well, at its start, so this module has few imports.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bpfsvc.datapath import loaded
from bpfsvc.datapath.attach import netkit, tcx, xdp
from bpfsvc.datapath.kernel_names import kernel_names
from bpfsvc.datapath.maps.pins import PinRoot, is_bpffs
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Device, Interfaces, devices_to_attach
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.doctor.facts import ANTREA_SERVICES, CILIUM_PINS, ForeignProgram, OthersFacts

_ROUTES = Path("/proc/net/route")
_BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
_OUR_MAPS = tuple(map(kernel_names, ("connections", "new_connections", "backend_counters")))
"""The names of each of three maps that only bpfsvc's programs use together."""


def collect_others(network: Interfaces, root: PinRoot, patterns: Sequence[str]) -> OthersFacts:
    """Return the signs of others; ``patterns`` choose the interfaces as ``--devices`` does."""
    names = frozenset(device.name for device in network.devices)
    loaded_programs, loaded_maps = loaded.program_names(), loaded.map_names()
    visible = loaded_programs is not None and loaded_maps is not None
    return OthersFacts(
        devices=names,
        attached=tuple(foreign_programs(root, devices_to_attach(network.devices, patterns))),
        loaded=(loaded_programs or frozenset()) | (loaded_maps or frozenset()) if visible else None,
        pinned=existing_pins(CILIUM_PINS),
        gateway=gateway_of(_ROUTES.read_text(), ANTREA_SERVICES),
    )


def foreign_programs(root: PinRoot, devices: Sequence[Device]) -> Iterator[ForeignProgram]:
    """Yield the programs on ``devices`` that do not belong to the agent at ``root``."""
    details, own = read_details(), xdp.attached(root)
    for device in devices:
        for program in details[device.index].xdp if device.index in details else ():
            if program != own.get(device.index):
                yield ForeignProgram(device.name, "xdp", "xdp", loaded.program_name(program))
        for hook in Hook:
            with suppress(DeviceGone):
                yield from _at_hook(root, device, hook)


def _at_hook(root: PinRoot, device: Device, hook: Hook) -> Iterator[ForeignProgram]:
    own = tcx.program_id(root, device.index, hook)
    for program in tcx.programs(device.index, hook):
        if program != own:
            yield ForeignProgram(
                device.name,
                str(hook),
                "tcx",
                loaded.program_name(program),
                bpfsvc=is_bpfsvc(loaded.maps_of(program)),
            )
    for program in netkit.programs(device.index, hook):
        yield ForeignProgram(device.name, str(hook), "netkit", loaded.program_name(program))
    for item in tc.attached(device.index, hook):
        # A filter of bpfsvc is replaced at the start, whichever agent left it.
        if not item.chain and not item.ours:
            name, kind, priority = item.name, item.kind, item.priority
            yield ForeignProgram(device.name, str(hook), "clsact", name, kind, priority)


def is_bpfsvc(maps: frozenset[str]) -> bool:
    """True if a program that uses ``maps`` is one of bpfsvc, of whichever build."""
    return all(maps & names for names in _OUR_MAPS)


def gateway_of(routes: str, address: str) -> str:
    """Return the interface of the route to one address in ``/proc/net/route``, or ""."""
    wanted = f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"
    rows = (line.split() for line in routes.splitlines()[1:])
    return next((row[0] for row in rows if row[1] == wanted), "")


def existing_pins(pins: Iterable[str]) -> frozenset[str]:
    """Return the ``pins`` that exist below the bpf file system."""
    if not _BPF_FILE_SYSTEM.is_dir() or not is_bpffs(_BPF_FILE_SYSTEM):
        return frozenset()
    return frozenset(pin for pin in pins if (_BPF_FILE_SYSTEM / pin).exists())
