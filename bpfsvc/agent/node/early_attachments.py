"""Interfaces that came while no agent ran get the pinned programs at once.

A pod that started meanwhile reaches no Service until programs are attached to its interface. An
agent attaches its own programs only when it knows all Services, perhaps after it has compiled a new
build. The programs that an earlier agent left serve all other pods, so they can serve the new pods
as well: this needs no objects and no build of this agent, only the pins. Interfaces with programs
stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bpfsvc.agent.flows.outside_flows import hand_over
from bpfsvc.agent.node.attachments import attach_hooks, shared_devices
from bpfsvc.agent.node.node_maps import NodeMaps
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.texts import count_text
from bpfsvc.config.config import Config
from bpfsvc.datapath.attach import cgroup, interfaces
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.devices import (
    Device,
    Interfaces,
    bridges_of,
    devices_to_attach,
    with_bridges_of,
)
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.datapath.netlink.monitor import Monitor

_log = logging.getLogger(__name__)

_ONLY_KEY = bytes(4)


class EarlyAttachments:
    """Attaches pinned programs to new interfaces, from :meth:`start` to :meth:`stop`."""

    def __init__(self, config: Config, root: PinRoot) -> None:
        self._config = config
        self._root = root
        self._attacher = interfaces.Attacher(root, config.attach, config.tc_priority)
        self._pinned: Pinned | None = None
        self._monitor: Monitor | None = None

    def start(self) -> None:
        """Attach to the interfaces of the node, and follow changes in a thread."""
        try:
            self._pinned = Pinned(self._root.current)
            if not self._is_of_this_namespace(self._pinned):
                return
            self._maps = NodeMaps(self._config, self._pinned)
        except NotLoaded:
            return
        except (BpfsvcError, KeyError) as error:
            _log.info("the pinned programs cannot serve new pods; this agent's own will: %s", error)
            return
        self._monitor = Monitor(self._follow, self._give_up)
        self._follow(self._monitor.start())

    def stop(self) -> None:
        """Stop: the agent attaches its own programs from now on. May be called twice."""
        if self._monitor:
            self._monitor.stop()
            self._monitor = None
        if self._pinned:
            self._pinned.close()
            self._pinned = None

    def _is_of_this_namespace(self, pinned: Pinned) -> bool:
        """True if the earlier agent worked in this network namespace."""
        raw = pinned.map("settings").lookup(_ONLY_KEY)
        settings = pinned.layout.maps["settings"].value.unpack(raw) if raw else {}
        return settings.get("netns_cookie") == cgroup.netns_cookie()

    def _follow(self, network: Interfaces) -> None:
        chosen = devices_to_attach(network.devices, self._config.devices)
        new = self._without_programs(chosen)
        try:
            if new:
                self._add(new, chosen, network)
            attached = [device.name for device in new if self._attach(device)]
        except (BpfsvcError, KeyError, OSError) as error:
            self._give_up(error)
            return
        if attached:
            _log.info(
                "attached the pinned programs to %s that came while no agent ran: %s",
                count_text(len(attached), "interface"),
                ", ".join(attached),
            )

    def _add(self, new: Sequence[Device], chosen: Sequence[Device], network: Interfaces) -> None:
        """Write the new interfaces for the fast path.

        The pinned programs redirect to their bridge, so answers must take the fast path too.
        """
        assert self._pinned
        bridges = bridges_of(new, network)
        masters = {bridge.index for bridge in bridges}
        ports = [device for device in chosen if device in new or device.master in masters]
        shared = with_bridges_of(shared_devices(self._root, (*ports, *bridges)), ports, network)
        if any(shared[index] for index in masters):
            self._maps.begin_nothing_fast()
            hand_over(self._pinned)
        self._maps.add_interfaces(new, network, shared)

    def _without_programs(self, chosen: tuple[Device, ...]) -> list[Device]:
        with tc.lister() as filters:
            return [device for device in chosen if not self._has_programs(filters, device.index)]

    def _has_programs(self, filters: tc.Lister, index: int) -> bool:
        try:
            return all(interfaces.programs(self._root, filters, index, hook) for hook in Hook)
        except BpfsvcError:
            return True

    def _attach(self, device: Device) -> bool:
        assert self._pinned
        try:
            attach_hooks(self._attacher, self._pinned, device)
        except DeviceGone:
            return False
        return True

    def _give_up(self, error: Exception) -> None:
        """Leave the other interfaces to the agent, which names those that it cannot attach to."""
        _log.info(
            "the pinned programs cannot serve some new pods; this agent's own will: %s", error
        )
