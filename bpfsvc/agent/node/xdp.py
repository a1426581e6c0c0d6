"""XDP on the uplinks: attached where possible; elsewhere the reason is reported.

Nothing depends on XDP. The programs at the tc hooks serve an interface without XDP, and every
packet that XDP passes on. So the node stays healthy without XDP.

Many drivers take the link down and up to attach a program, some even if they then refuse it.
Meanwhile the program that manages the network may remove addresses and routes. So addresses and
routes that go and come change nothing about an interface with XDP: that would never end.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from bpfsvc.agent.node import xdp_devices
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath import loaded
from bpfsvc.datapath.attach import xdp
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.netlink.details import read_details_of
from bpfsvc.datapath.netlink.devices import Device, Interfaces, bond_ports
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.datapath.syscall import program_id

_log = logging.getLogger(__name__)

PROGRAM = "xdp"

_Conditions = tuple[tuple[int, xdp.XdpConditions], ...]
"""The conditions of an interface and of its ports, by index."""


class XdpAttachments:
    """The uplinks of one node. ``patterns``: the value of ``--xdp``; empty detaches XDP."""

    def __init__(self, patterns: Sequence[str], installation: Installation) -> None:
        self._patterns = tuple(patterns)
        self._root = installation.root
        self._pinned = installation.pinned
        self._uplinks = self._pinned.map("uplinks")
        self._network = Interfaces((), 0, 0)
        self._wanted: dict[int, Device] = {}
        self._served: dict[int, Device] = {}
        self._declined: dict[int, str] = {}
        self._refusals: dict[int, dict[_Conditions, str]] = {}
        self._unsuitable: dict[str, str] = {}

    @property
    def served(self) -> list[str]:
        """Names of the interfaces with our XDP program."""
        return sorted(device.name for device in self._served.values())

    @property
    def declined(self) -> dict[str, str]:
        """Names of the interfaces that should have our XDP program and do not -> why."""
        refused = {
            device.name: self._declined[index]
            for index, device in self._wanted.items()
            if index in self._declined
        }
        return dict(sorted((self._unsuitable | refused).items()))

    def follow_network(self, network: Interfaces, attached: Sequence[Device]) -> None:
        """Attach to those interfaces of ``attached`` that the patterns choose.

        ``attached``: interfaces with programs at tc hooks. An interface keeps XDP when it loses its
        address or route. A driver's refusal is remembered as long as the interface exists.
        """
        self._network = network
        chosen = xdp_devices.choose(network, attached, self._patterns)
        staying = [device for device in attached if self._keeps_xdp(device)]
        self._wanted = wanted = {device.index: device for device in (*staying, *chosen)}
        self._unsuitable = xdp_devices.unsuitable(network, attached, self._patterns)
        self._served = {index: wanted[index] for index in self._served if index in wanted}
        present = {device.index for device in network.devices}
        for known in (self._declined, self._refusals):
            for index in known.keys() - present:
                del known[index]
        self._detach_others(set(wanted))
        tried = self._served.keys() | self._declined.keys()
        untried = [device for index, device in wanted.items() if index not in tried]
        self._attach_where_possible(untried)
        self._write_uplinks()

    def _keeps_xdp(self, device: Device) -> bool:
        before = self._served.get(device.index)
        now = device.name, device.master
        return before is not None and (before.name, before.master) == now

    def _detach_others(self, wanted: set[int]) -> None:
        """Detach from all other interfaces that have XDP of this or an earlier agent."""
        present = {device.index for device in self._network.devices}
        xdp.forget_missing(self._root, present)
        superfluous = xdp.attached(self._root).keys() - wanted
        if not superfluous:
            return
        # No packet may be redirected to an interface without XDP: its driver may drop it.
        for key, entry in list(self._uplinks.items()):
            if superfluous & {*struct.unpack_from("=I", key), *struct.unpack_from("=I", entry)}:
                self._uplinks.delete(key)
        for index in superfluous:
            xdp.detach(self._root, index)

    def _attach_where_possible(self, devices: Sequence[Device]) -> None:
        """Attach to interfaces without another program, unless the driver refused before."""
        occupants = _occupants(devices) if devices else None
        if occupants is None:
            return
        ours = xdp.attached(self._root)
        for device in devices:
            if device.index not in ours and occupants.get(device.index):
                self._decline(device, _occupied(occupants[device.index]))
                continue
            try:
                now = self._conditions(device)
            except OSError:
                continue  # it was removed or renamed meanwhile
            refusal = self._refusals.get(device.index, {}).get(now)
            if refusal:
                self._decline(device, refusal)
            else:
                self._attach(device, now)

    def _conditions(self, device: Device) -> _Conditions:
        """Return the conditions that drivers may refuse for; a bond asks its ports' drivers."""
        asked = (device, *bond_ports(self._network.devices, device))
        return tuple((port.index, xdp.conditions(port.name)) for port in asked)

    def _attach(self, device: Device, now: _Conditions) -> None:
        try:
            xdp.attach(self._root, device.index, self._pinned.program(PROGRAM))
        except DeviceGone:
            return
        except xdp.Occupied:
            occupants = _occupants([device])
            others = occupants.get(device.index, ()) if occupants else ()
            refusal = _occupied(others)
            if others or occupants is None:  # another program came first, and may go again
                self._decline(device, refusal)
                return
        except BpfsvcError as error:
            refusal = error.message
        except OSError as error:
            refusal = str(error.strerror)
        else:
            self._declined.pop(device.index, None)
            self._served[device.index] = device
            return
        self._refusals.setdefault(device.index, {})[now] = refusal
        self._decline(device, refusal)

    def _decline(self, device: Device, reason: str) -> None:
        if self._declined.get(device.index) != reason:
            _log.warning("%s is not served by XDP: %s", device.name, reason)
        self._declined[device.index] = reason

    def _write_uplinks(self) -> None:
        record = self._pinned.layout.maps["uplinks"].value
        served = xdp_devices.by_driver(self._network, tuple(self._served.values()))
        self._uplinks.replace(
            {
                struct.pack("=I", index): record.pack(
                    {
                        "ifindex": device.index,
                        "mac": device.mac,
                        "redirect": xdp_devices.takes_redirected_only(device),
                        "takes": xdp_devices.takes_redirected(device, _driver(device)),
                    }
                )
                for index, device in served.items()
            }
        )

    def check(self) -> list[str]:
        """Return the interfaces that lost the program; :meth:`follow_network` attaches again.

        Interfaces without XDP are tried again first: another program or an MTU that prevented it
        may be gone. A driver is asked only once in the same conditions.
        """
        waiting = [device for index, device in self._wanted.items() if index not in self._served]
        attached = xdp.attached(self._root)
        ours = program_id(self._pinned.program(PROGRAM))
        gone = [index for index in self._served if attached.get(index) != ours]
        lost = [f"{self._served.pop(index).name} (XDP)" for index in gone]
        self._attach_where_possible(waiting)
        self._write_uplinks()
        return lost


def _driver(device: Device) -> str:
    """Return the name of an interface's driver; "" without hardware."""
    link = Path("/sys/class/net", device.name, "device", "driver")
    return link.readlink().name if link.is_symlink() else ""


def _occupants(devices: Iterable[Device]) -> dict[int, tuple[int, ...]] | None:
    """Return the ids of the XDP programs by interface; None if they cannot be read now."""
    try:
        details = read_details_of(device.index for device in devices)
    except (BpfsvcError, OSError):
        return None
    return {index: detail.xdp for index, detail in details.items()}


def _occupied(numbers: Iterable[int]) -> str:
    names = [f"{loaded.program_name(number)} {number}".strip() for number in numbers]
    return f"another XDP program is there ({', '.join(names) or 'which cannot be seen'})"
