"""XDP on the uplinks: attached where it can be, and told apart where it cannot.

Nothing depends on it. An interface that XDP does not serve is served by the programs at its tc
hooks, and so is every packet that XDP leaves alone; that something is in the way is told, and no
reason to be unwell.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path

from bpfsvc import uplinks
from bpfsvc.datapath import census, xdp
from bpfsvc.datapath.bpf import program_id
from bpfsvc.datapath.installation import Installation
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Device, Network
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.errors import BpfsvcError

_log = logging.getLogger(__name__)

PROGRAM = "edge"


class Edge:
    """The uplinks of one node. ``patterns``: ``--xdp``; empty takes XDP away from all."""

    def __init__(self, patterns: Sequence[str], installation: Installation) -> None:
        self._patterns = tuple(patterns)
        self._root = installation.root
        self._pinned = installation.pinned
        self._uplinks = self._pinned.map("uplinks")
        self._network = Network((), 0, 0)
        self._served: dict[int, Device] = {}
        self._declined: dict[int, tuple[Device, str]] = {}
        self._unfit: dict[str, str] = {}

    @property
    def served(self) -> list[str]:
        """Names of the interfaces that XDP takes packets from."""
        return sorted(device.name for device in self._served.values())

    @property
    def declined(self) -> dict[str, str]:
        """Names of the interfaces that it was to serve and does not, and why."""
        refused = {device.name: reason for device, reason in self._declined.values()}
        return dict(sorted((self._unfit | refused).items()))

    def follow(self, network: Network, attached: Sequence[Device]) -> None:
        """Serve what shall be served of ``attached``, the interfaces with programs at tc hooks."""
        self._network = network
        wanted = {each.index: each for each in uplinks.choose(network, attached, self._patterns)}
        self._unfit = uplinks.unfit(network, attached, self._patterns)
        self._served = {
            index: wanted[index]
            for index, device in self._served.items()
            if index in wanted and wanted[index].name == device.name
        }
        self._declined = {
            index: (wanted[index], reason)
            for index, (device, reason) in self._declined.items()
            if index in wanted and wanted[index].name == device.name
        }
        self._leave(set(wanted))
        for device in wanted.values():
            if device.index not in self._served and device.index not in self._declined:
                self._attach(device)
        self._write_rows()

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

    def _attach(self, device: Device) -> None:
        try:
            xdp.attach(self._root, device.index, self._pinned.program(PROGRAM))
        except DeviceGone:
            return
        except xdp.Occupied as error:
            self._decline(device, f"{error.message} ({_occupants(device)})")
        except BpfsvcError as error:
            self._decline(device, error.message)
        except OSError as error:
            self._decline(device, f"{error.strerror}")
        else:
            self._declined.pop(device.index, None)
            self._served[device.index] = device

    def _decline(self, device: Device, reason: str) -> None:
        if self._declined.get(device.index) != (device, reason):
            _log.warning("%s is not served by XDP: %s", device.name, reason)
        self._declined[device.index] = device, reason

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

        What was in the way may have gone, be it another program or an MTU.
        """
        found = xdp.attached(self._root)
        ours = program_id(self._pinned.program(PROGRAM))
        gone = [index for index in self._served if found.get(index) != ours]
        lost = [f"{self._served.pop(index).name} (XDP)" for index in gone]
        for device, _ in [*self._declined.values()]:
            self._attach(device)
        self._write_rows()
        return lost


def _driver(device: Device) -> str:
    """Name the driver of an interface; empty for one that is no hardware."""
    link = Path("/sys/class/net", device.name, "device", "driver")
    return link.readlink().name if link.is_symlink() else ""


def _occupants(device: Device) -> str:
    """Name the XDP programs on an interface, as far as they can be seen."""
    try:
        with Conversation() as talk:
            details = read_details(talk).get(device.index)
        numbers = details.xdp if details else ()
        names = [f"{census.program_name(number)} {number}".strip() for number in numbers]
    except (BpfsvcError, OSError):
        return "which cannot be seen"
    return ", ".join(names) or "it has gone again"
