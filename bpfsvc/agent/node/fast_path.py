"""The fast path of this node: the level at which it is used, and the interfaces that it may bypass.

Netfilter has not seen the outside connections that are on the fast path. Before one of their
interfaces leaves it, they are added to conntrack (:mod:`bpfsvc.agent.flows.outside_flows`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bpfsvc.agent.flows.outside_flows import hand_over
from bpfsvc.agent.node.attachments import shared_devices
from bpfsvc.agent.node.node_maps import NodeMaps
from bpfsvc.agent.reports import Reports
from bpfsvc.base.fast_path import FAST, STACK, FastPathUse
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.netlink.devices import Device, Interfaces, bridges_of, with_bridges_of
from bpfsvc.metrics.observer import Observer

_log = logging.getLogger("bpfsvc")


def use_line(use: FastPathUse) -> str:
    """Return the line of the log about a level."""
    if use.level == FAST:
        return "the fast path is used: nothing on this node has to see forwarded packets"
    if use.level == STACK:
        return f"the fast path is not used: {use.reason} (bpfsvc doctor shows details)"
    if not use.reason:
        return "the fast path is used in the middle of connections: netfilter sees the rest"
    return (
        f"the fast path is used in the middle of connections only: {use.reason}"
        " (bpfsvc doctor shows details)"
    )


def use_note(use: FastPathUse) -> str | None:
    """Return why there is no better level, as the status page shows it; None at the best level."""
    if not use.reason:
        return None
    if use.level == STACK:
        return f"no fast path: {use.reason}"
    return f"the fast path is for established connections only: {use.reason}"


class FastPath:
    """Belongs to the agent's thread."""

    def __init__(
        self,
        installation: Installation,
        maps: NodeMaps,
        metrics: Observer,
        reports: Reports,
    ) -> None:
        self._root = installation.root
        self._pinned = installation.pinned
        self._maps = maps
        self._metrics = metrics
        self._reports = reports
        self._use: FastPathUse | None = None
        self._chosen: tuple[Device, ...] = ()
        self._network = Interfaces((), 0, 0)
        self._shared: dict[int, bool] = {}
        """By index: True if an interface has programs of others, which would be bypassed."""

    def use(self, use: FastPathUse) -> bool:
        """Use the fast path at this level.

        To be called every few seconds, also with the same level. Returns True if the level is
        another than before.
        """
        before, self._use = self._use, use
        if use != before:
            self._reports.note("fast path", use_note(use))
        if before and before.level == use.level:
            self._maps.renew_fast_path()
            return False
        _log.info("%s", use_line(use))
        self._metrics.fast_path_level(use.level)
        self._maps.set_fast_path(use.level)
        self.check_devices()
        self._maps.rewrite_settings()
        return True

    def end_outside(self) -> None:
        """Leave connections from outside to the stack, if the fast path is not used any more."""
        if self._maps.leaves_outside_fast:
            hand_over(self._pinned)
            self._maps.end_fast_outside()

    def follow_network(self, network: Interfaces, chosen: tuple[Device, ...]) -> None:
        """Write the interfaces ``chosen``; only new ones are looked at for programs of others."""
        self._network, self._chosen = network, chosen
        sending = self._sending()
        known = {
            device.index: self._shared[device.index]
            for device in sending
            if device.index in self._shared
        }
        new = self._are_shared(device for device in sending if device.index not in known)
        self._write(with_bridges_of(known | new, chosen, network))

    def check_devices(self) -> None:
        """Take devices out of the fast path that other programs were attached to since."""
        if not self._maps.fast_path:
            return
        shared = with_bridges_of(self._are_shared(self._sending()), self._chosen, self._network)
        if shared != self._shared:
            self._write(shared)

    def _sending(self) -> tuple[Device, ...]:
        """Return the interfaces that the fast path may send by: ours, and the bridges of ports."""
        return (*self._chosen, *bridges_of(self._chosen, self._network))

    def _are_shared(self, devices: Iterable[Device]) -> dict[int, bool]:
        if not self._maps.fast_path:
            return dict.fromkeys((device.index for device in devices), False)
        return shared_devices(self._root, devices)

    def _write(self, shared: dict[int, bool]) -> None:
        """Write the interfaces; the fast path bypasses none that is ``shared``, by index.

        At the first call it is not known which of them the earlier agent had on the fast path.
        """
        kept = bool(self._shared)
        some_leave = any(
            is_shared and not self._shared.get(index, kept) for index, is_shared in shared.items()
        )
        if some_leave:
            # Many connections take seconds: no other one may begin meanwhile.
            self._maps.begin_nothing_fast()
            hand_over(self._pinned)
        self._shared = shared
        self._maps.write_interfaces(self._chosen, shared)
        if some_leave:
            self._maps.rewrite_settings()
