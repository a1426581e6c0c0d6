"""The programs at tc hooks of interfaces, and at the socket hooks of a cgroup.

The network changes whenever a pod comes or goes. It is usual that an interface vanishes while a
program is being attached. An interface that the kernel refuses is logged once, and the others are
attached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from bpfsvc.agent.reports import Reports
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Config
from bpfsvc.datapath.attach import cgroup, interfaces, tracepoints
from bpfsvc.datapath.loader.compiler import SOCKET_PROGRAMS
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.devices import Device
from bpfsvc.datapath.netlink.hooks import DeviceGone, Filter, Hook
from bpfsvc.datapath.syscall import program_id

_log = logging.getLogger(__name__)


class TcAttachments:
    """The programs at the tc hooks of this node's interfaces."""

    def __init__(self, config: Config, installation: Installation) -> None:
        self._root = installation.root
        self._pinned = installation.pinned
        self._attacher = interfaces.Attacher(installation.root, config.attach, config.tc_priority)
        self._attached: dict[int, str] = {}
        self._once_attached: set[str] = set()
        self._failed: set[str] = set()
        self._warnings: dict[str, str] = {}

    @property
    def indices(self) -> set[int]:
        """Indices of the interfaces with our programs."""
        return set(self._attached)

    @property
    def names(self) -> list[str]:
        """Names of the interfaces with our programs."""
        return sorted(self._attached.values())

    @property
    def refused(self) -> list[str]:
        """Names of the interfaces that the kernel never let the programs on."""
        return sorted(self._failed - self._once_attached)

    @property
    def lost(self) -> list[str]:
        """Names of the interfaces that had the programs, and that the kernel now refuses."""
        return sorted(self._failed & self._once_attached)

    def follow_network(self, present: set[int], chosen: Sequence[Device]) -> None:
        """Attach to the interfaces ``chosen``; detach from others that are ``present``."""
        for index in set(self._attached) - {device.index for device in chosen}:
            # It is gone, or part of a bond by now: a packet must meet our ingress only once.
            if index in present:
                self._detach(index)
            self._once_attached.discard(self._attached.pop(index))
        self._attacher.forget_missing(present)
        self._failed.clear()
        for device in chosen:
            if self._attached.get(device.index) != device.name:
                self._attach(device)

    def retry(self, chosen: Iterable[Device]) -> list[str]:
        """Attach where the kernel refused; return the interfaces where it no longer refuses."""
        refused = [device for device in chosen if device.name in self._failed]
        self._failed.clear()
        for device in refused:
            self._attach(device)
        return [device.name for device in refused if device.index in self._attached]

    def check(self) -> list[str]:
        """Return the interfaces that lost our programs; :meth:`follow_network` attaches again."""
        lost = []
        with tc.lister() as filters:
            for index, name in list(self._attached.items()):
                try:
                    present = all(self._is_attached(filters, index, hook) for hook in Hook)
                except DeviceGone:
                    continue
                if not present:
                    lost.append(name)
                    del self._attached[index]
        return lost

    def _attach(self, device: Device) -> None:
        try:
            for hook, other in attach_hooks(self._attacher, self._pinned, device):
                self._warn_once(
                    f"{device.name} {hook}",
                    f"{device.name} {hook}: another program comes first ({other});"
                    " if it does not pass packets on, Services do not work there"
                    " (lower --tc-priority, or let it return 'unspecified')",
                )
        except DeviceGone:
            return
        except BpfsvcError as error:
            self._failed.add(device.name)
            text = f"{device.name} is not attached, Services do not work there: {error}"
            self._warn_once(device.name, text)
            return
        self._warnings.pop(device.name, None)
        self._attached[device.index] = device.name
        self._once_attached.add(device.name)

    def _detach(self, index: int) -> None:
        try:
            interfaces.detach(self._root, index)
        except BpfsvcError as error:
            self._warn_once(
                str(index), f"programs cannot be detached from interface {index}: {error}"
            )

    def _warn_once(self, about: str, text: str) -> None:
        if self._warnings.get(about) != text:
            self._warnings[about] = text
            _log.warning("%s", text)

    def _is_attached(self, filters: tc.Lister, index: int, hook: Hook) -> bool:
        ours = {program_id(self._pinned.program(f"{hook}{suffix}")) for suffix in ("", "_l3")}
        return bool(interfaces.programs(self._root, filters, index, hook) & ours)


def attach_hooks(
    attacher: interfaces.Attacher, pinned: Pinned, device: Device
) -> list[tuple[Hook, Filter]]:
    """Attach to both hooks of a device; return the programs of others that come first.

    Raises :class:`DeviceGone`, and :class:`BpfsvcError` if the kernel refuses.
    """
    suffix, label = "" if device.has_ethernet else "_l3", pinned.layout.digest
    return [
        (hook, other)
        for hook in Hook
        for other in attacher.attach(device.index, hook, pinned.program(f"{hook}{suffix}"), label)
    ]


def shared_devices(root: PinRoot, devices: Iterable[Device]) -> dict[int, bool]:
    """Return by index: True if a device has programs of others, or they cannot be read."""
    with tc.lister() as filters:
        return {device.index: _is_shared(root, filters, device.index) for device in devices}


def _is_shared(root: PinRoot, filters: tc.Lister, index: int) -> bool:
    try:
        return interfaces.is_shared(root, filters, index)
    except DeviceGone:
        return False  # it receives nothing; the end of a pod must not concern its bridge
    except BpfsvcError:
        return True


def _cgroup_of_sockets(config: Config) -> Path | None:
    """Return the cgroup of the processes that use the socket LB; None without socket LB."""
    return config.cgroup_root if config.socket_lb != "off" else None


class SocketAttachments:
    """The programs at the socket hooks of the cgroup of the socket LB."""

    def __init__(self, config: Config, installation: Installation) -> None:
        self._cgroup = _cgroup_of_sockets(config)
        self._root = installation.root
        self._pinned = installation.pinned

    def attach(self) -> None:
        """Attach the programs; without socket LB, detach an earlier agent's."""
        if self._cgroup:
            cgroup.attach(self._root, self._pinned, self._cgroup)
        else:
            cgroup.detach(self._root)

    def count(self) -> int:
        """Return how many programs are attached."""
        return len(cgroup.attached(self._root))

    def repair(self) -> list[str]:
        """Attach removed programs again; return where they were missing, in words."""
        if self._cgroup is None or self.count() >= len(SOCKET_PROGRAMS):
            return []
        self.attach()
        return [f"the sockets of {self._cgroup}"]


class SocketFailures:
    """The programs that count failed connections of sockets; other connections cost nothing."""

    def __init__(self, config: Config, installation: Installation, reports: Reports) -> None:
        self._wanted = _cgroup_of_sockets(config) is not None
        self._root = installation.root
        self._pinned = installation.pinned
        self._reports = reports

    def attach(self) -> None:
        """Attach the programs, or note why not; without socket LB, detach an earlier agent's."""
        if not self._wanted:
            tracepoints.detach(self._root)
            return
        fault = None
        try:
            tracepoints.attach(self._root, self._pinned)
        except BpfsvcError as error:
            fault = f"failed connections of sockets are not counted: {error}"
            _log.warning("%s", fault)
        self._reports.note("socket failures", fault)


class SocketWatch:
    """The sockops program, which sees failed connections. Each TCP connection pays for it."""

    def __init__(self, config: Config, installation: Installation, reports: Reports) -> None:
        self._cgroup = _cgroup_of_sockets(config)
        self._installation = installation
        self._root = installation.root
        self._reports = reports
        self._watched: Path | None = None
        self._fault = ""

    def use(self, wanted: bool) -> None:
        """Attach the program if some Service wants it; detach it if none does."""
        self._watched = self._cgroup if wanted else None
        if self._watched:
            self._installation.wait()
            self._attach(self._watched)
        else:
            cgroup.unwatch(self._root)
            self._set_fault("")

    def repair(self) -> list[str]:
        """Attach the program again if it is missing; return where it was removed, in words."""
        if self._watched is None or cgroup.is_watched(self._root):
            return []
        failed_before = bool(self._fault)
        if not self._attach(self._watched):
            return []
        if failed_before:
            _log.info("sockops program attached again")
            return []
        return [f"the sockets of {self._watched}"]

    def _attach(self, group: Path) -> bool:
        try:
            cgroup.watch(self._root, self._installation.pinned, group)
        except BpfsvcError as error:
            self._set_fault(
                f"sockops program not attached, failed connections of sockets do not count: {error}"
            )
            return False
        self._set_fault("")
        return True

    def _set_fault(self, text: str) -> None:
        """Show why the program is not attached; log a new reason."""
        if text and text != self._fault:
            _log.warning("%s", text)
        self._fault = text
        self._reports.note("socket watch", text or None)
