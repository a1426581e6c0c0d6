"""XDP on the uplinks: attached where it can be, and told apart where it cannot.

Nothing depends on it. An interface that XDP does not serve is served by the programs at its tc
hooks, and so is every packet that XDP leaves alone; that something is in the way is told, and no
reason to be unwell.

Many drivers take the link down and up to attach a program, some even if they refuse it then, and
whoever manages the network may take addresses and routes away meanwhile. So nothing is attached or
taken off because of what a link that goes down and up brings about: it would never end.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from bpfsvc import uplinks
from bpfsvc.datapath import census, xdp
from bpfsvc.datapath.bpf import program_id
from bpfsvc.datapath.installation import Installation
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Device, Network, bundled
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.errors import BpfsvcError

_log = logging.getLogger(__name__)

PROGRAM = "edge"

_Conditions = tuple[tuple[int, xdp.Conditions], ...]
"""Those of an interface and of its ports, by index."""


class Edge:
    """The uplinks of one node. ``patterns``: ``--xdp``; empty takes XDP away from all."""

    def __init__(self, patterns: Sequence[str], installation: Installation) -> None:
        self._patterns = tuple(patterns)
        self._root = installation.root
        self._pinned = installation.pinned
        self._uplinks = self._pinned.map("uplinks")
        self._network = Network((), 0, 0)
        self._wanted: dict[int, Device] = {}
        self._served: dict[int, Device] = {}
        self._declined: dict[int, str] = {}
        self._refusals: dict[int, dict[_Conditions, str]] = {}
        self._unfit: dict[str, str] = {}

    @property
    def served(self) -> list[str]:
        """Names of the interfaces that XDP takes packets from."""
        return sorted(device.name for device in self._served.values())

    @property
    def declined(self) -> dict[str, str]:
        """Names of the interfaces that it was to serve and does not, and why."""
        refused = {
            device.name: self._declined[index]
            for index, device in self._wanted.items()
            if index in self._declined
        }
        return dict(sorted((self._unfit | refused).items()))

    def follow(self, network: Network, attached: Sequence[Device]) -> None:
        """Serve what shall be served of ``attached``, the interfaces with programs at tc hooks.

        What is served stays so when it loses its address or route, and what a driver said is
        remembered for as long as its interface is there, wanted or not.
        """
        self._network = network
        chosen = uplinks.choose(network, attached, self._patterns)
        staying = [each for each in attached if self._stays(each)]
        self._wanted = wanted = {each.index: each for each in (*staying, *chosen)}
        self._unfit = uplinks.unfit(network, attached, self._patterns)
        self._served = {index: wanted[index] for index in self._served if index in wanted}
        present = {device.index for device in network.devices}
        self._declined = {i: each for i, each in self._declined.items() if i in present}
        self._refusals = {i: each for i, each in self._refusals.items() if i in present}
        self._leave(set(wanted))
        tried = self._served.keys() | self._declined.keys()
        self._try([device for index, device in wanted.items() if index not in tried])
        self._write_rows()

    def _stays(self, device: Device) -> bool:
        before = self._served.get(device.index)
        now = device.name, device.master
        return before is not None and (before.name, before.master) == now

    def _leave(self, wanted: set[int]) -> None:
        """Detach from the interfaces that an agent before this one, or another picture, served."""
        present = {device.index for device in self._network.devices}
        xdp.forget_missing(self._root, present)
        superfluous = xdp.attached(self._root).keys() - wanted
        if not superfluous:
            return
        # Nothing shall be sent by an interface whose driver prepares for it no more.
        for key, row in list(self._uplinks.items()):
            if superfluous & {*struct.unpack_from("=I", key), *struct.unpack_from("=I", row)}:
                self._uplinks.delete(key)
        for index in superfluous:
            xdp.detach(self._root, index)

    def _try(self, devices: Sequence[Device]) -> None:
        """Attach where nobody is, if its driver has not refused under the conditions of now."""
        occupants = _occupants() if devices else None
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
                continue  # it has gone, or has another name by now
            refusal = self._refusals.get(device.index, {}).get(now)
            if refusal:
                self._decline(device, refusal)
            else:
                self._attach(device, now)

    def _conditions(self, device: Device) -> _Conditions:
        """Give what may be why drivers refuse; a bond asks those of its ports."""
        asked = (device, *bundled(self._network.devices, device))
        return tuple((each.index, xdp.conditions(each.name)) for each in asked)

    def _attach(self, device: Device, now: _Conditions) -> None:
        try:
            xdp.attach(self._root, device.index, self._pinned.program(PROGRAM))
        except DeviceGone:
            return
        except xdp.Occupied:
            occupants = _occupants()
            there = occupants.get(device.index, ()) if occupants else ()
            refusal = _occupied(there)
            if there or occupants is None:  # somebody came first by a moment, and may go again
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

    def _write_rows(self) -> None:
        record = self._pinned.layout.maps["uplinks"].value
        served = uplinks.rows(self._network, tuple(self._served.values()))
        self._uplinks.replace(
            {
                struct.pack("=I", index): record.pack(
                    {
                        "ifindex": device.index,
                        "mac": device.mac,
                        "redirect": uplinks.takes_redirected_only(device),
                        "takes": uplinks.takes_redirected(device, _driver(device)),
                    }
                )
                for index, device in served.items()
            }
        )

    def check(self) -> list[str]:
        """Find what lost its program, and give the names; the next :meth:`follow` mends it.

        What was in the way may have gone, be it another program or an MTU. That is looked at first:
        a driver is asked once under the same conditions.
        """
        waiting = [each for index, each in self._wanted.items() if index not in self._served]
        found = xdp.attached(self._root)
        ours = program_id(self._pinned.program(PROGRAM))
        gone = [index for index in self._served if found.get(index) != ours]
        lost = [f"{self._served.pop(index).name} (XDP)" for index in gone]
        self._try(waiting)
        self._write_rows()
        return lost


def _driver(device: Device) -> str:
    """Name the driver of an interface; empty for one that is no hardware."""
    link = Path("/sys/class/net", device.name, "device", "driver")
    return link.readlink().name if link.is_symlink() else ""


def _occupants() -> dict[int, tuple[int, ...]] | None:
    """Give the ids of the XDP programs on each interface; None if that cannot be seen now."""
    try:
        with Conversation() as talk:
            return {index: each.xdp for index, each in read_details(talk).items()}
    except (BpfsvcError, OSError):
        return None


def _occupied(numbers: Iterable[int]) -> str:
    names = [f"{census.program_name(number)} {number}".strip() for number in numbers]
    return f"another XDP program is there ({', '.join(names) or 'which cannot be seen'})"
