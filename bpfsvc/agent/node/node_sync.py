"""This node in the kernel, kept up to date: its maps, and the programs attached to its interfaces.

Everything is written again from each new picture of the interfaces, and only differences cost
anything. Addresses are written first: a program must find them when its first packet comes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from bpfsvc.agent.flows.outside_flows import hand_over
from bpfsvc.agent.node.attachments import SocketAttachments, SocketWatch, TcAttachments
from bpfsvc.agent.node.node_maps import NodeMaps
from bpfsvc.agent.node.pin_keeper import PinKeeper
from bpfsvc.agent.node.xdp import XdpAttachments
from bpfsvc.agent.reports import Reports
from bpfsvc.base.errors import BpfsvcError, MapFull
from bpfsvc.base.texts import count_text
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.netlink.devices import (
    Device,
    Interfaces,
    addresses,
    bridges_of,
    choice_fault,
    devices_to_attach,
    with_bridges_of,
)
from bpfsvc.http.healthz import Health
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import Node

_log = logging.getLogger("bpfsvc")


class NodeSync:
    """Follows the Node object and the interfaces; belongs to the agent's thread."""

    def __init__(
        self,
        config: Config,
        installation: Installation,
        health: Health,
        health_checks: ServiceHealthChecks,
        metrics: Observer,
        reports: Reports,
    ) -> None:
        self._config = config
        self._reports = reports
        self._installation = installation
        self._health = health
        self._health_checks = health_checks
        self._metrics = metrics
        self._maps = NodeMaps(config, installation.pinned)
        self._tc = TcAttachments(config, installation)
        self._xdp = XdpAttachments(config.xdp, installation)
        self._sockets = SocketAttachments(config, installation)
        self._socket_watch = SocketWatch(config, installation, health)
        self._pins: PinKeeper | None = None
        self._pin_error = ""
        self._destinations = Destinations(installation.pinned)
        self._is_first_build = installation.fresh and not installation.replaces
        self._network: Interfaces | None = None
        self._chosen: tuple[Device, ...] = ()
        self._choice_fault = ""
        self._shared: dict[int, bool] = {}
        self._fast_path_reason: str | None = None

    @property
    def is_following(self) -> bool:
        """True once the interfaces are known."""
        return self._network is not None

    @property
    def attached(self) -> list[str]:
        """Names of the interfaces that our programs are attached to."""
        return self._tc.names

    @property
    def with_xdp(self) -> list[str]:
        """Names of the interfaces that XDP serves."""
        return self._xdp.served

    # -- following --

    def set_node(self, node: Node) -> None:
        """Use what the Node object says; it takes effect with the next picture of interfaces."""
        self._maps.set_node(node)

    def watch_sockets(self, wanted: bool) -> None:
        """Have the kernel tell what happens to TCP sockets, or not any more."""
        self._socket_watch.use(wanted)

    def wait_for_programs(self) -> None:
        """Return when all programs can be attached; raise :class:`BpfsvcError` if they cannot."""
        self._installation.wait()

    def start(self, network: Interfaces) -> None:
        """Attach all programs, and release the build that they replace."""
        installation = self._installation
        installation.catch_up()
        self._maps.write_settings(settling=installation.settling)
        self.follow(network)
        if installation.settling:
            installation.catch_up()
            self._maps.write_settings()
        self._sockets.attach()
        installation.complete()
        self._pins = PinKeeper(installation.root, installation.pinned)
        self._end_fast_outside()
        self._report_attachments()

    def follow(self, network: Interfaces) -> None:
        """Make the maps and attachments those of ``network``, and report what is missing."""
        self.check_pins()
        self._network = network
        try:
            self._apply(network)
            self._health.clear_problem("node")
        except MapFull as error:
            if self._health.set_problem("node", str(error)):
                self._reports.map_full("not all of this node is known to the programs", error)
        if self._pins and not self._pin_error:
            self._pins.hold_links()
        own = addresses(network)
        self._report_attachments()
        nodeports = self._maps.nodeports
        self._health_checks.listen_on(
            place for each in (4, 6) for place in nodeports.listening(own, each)
        )

    def follow_again(self) -> None:
        """Write again what follows from the interfaces, if they are known."""
        if self._network is not None:
            self.follow(self._network)

    def _apply(self, network: Interfaces) -> None:
        self._chosen = devices_to_attach(network.devices, self._config.devices)
        self._report_choice(network)
        self._maps.set_network(network)
        sending = self._sending()
        known = {
            device.index: self._shared[device.index]
            for device in sending
            if device.index in self._shared
        }
        new = self._are_shared(device for device in sending if device.index not in known)
        self._take_shared(with_bridges_of(known | new, self._chosen, network))
        if self._is_first_build:
            # A connection needs the programs of two interfaces. Until all are attached, the former
            # proxy keeps the new ones. (An earlier build serves meanwhile, and by the same bits.)
            self._destinations.hide()
        try:
            self._tc.follow({device.index for device in network.devices}, self._chosen)
        finally:
            self._destinations.show()
            self._is_first_build = False
        attached = self._tc.indices
        self._xdp.follow(network, [each for each in self._chosen if each.index in attached])

    def _take_shared(self, shared: dict[int, bool]) -> None:
        """Write the interfaces; the fast path bypasses none that is ``shared``, by index.

        Netfilter is told first of what is on the fast path by one that was not. Of none at all is
        known what it was for the agent before this one.
        """
        kept = bool(self._shared)
        leaves = any(
            is_shared and not self._shared.get(index, kept) for index, is_shared in shared.items()
        )
        if leaves:
            # That takes seconds where there are many: none may begin meanwhile.
            self._maps.begin_nothing_fast()
            hand_over(self._installation.pinned)
        self._shared = shared
        self._maps.write_interfaces(self._chosen, shared)
        if leaves:
            self._maps.rewrite_settings()

    # -- checking --

    def check_pins(self) -> None:
        """Pin again what another program unpinned; until then, attach nothing by pins."""
        if self._pins is None or not (missing := self._pins.missing()):
            return
        what = f"{count_text(missing, 'pin')} of {self._installation.root.path}"
        try:
            self._pins.restore()
        except BpfsvcError as error:
            if self._pin_error != str(error):
                self._pin_error = str(error)
                _log.error("%s removed, and not restored: %s", what, error)
            self._health.set_note(
                "pins", f"{what} are missing; Services stop with this agent: {error}"
            )
            return
        self._pin_error = ""
        self._health.set_note("pins", None)
        _log.warning("%s removed by another program; pinned again", what)
        self._metrics.pins_lost(missing)

    def check_attachments(self) -> None:
        """Attach again what another program removed; nothing announces that."""
        self.check_pins()
        if self._network is None or self._pin_error:
            return
        self.check_shared_devices()
        lost = self._sockets.repair() + self._socket_watch.repair()
        lost += self._tc.check() + self._xdp.check()
        if lost:
            _log.warning("programs were removed from %s; attaching them again", ", ".join(lost))
            self._metrics.interfaces_lost(len(lost))
            self.follow(self._network)
        elif allowed := self._tc.retry(self._chosen):
            _log.info("attached to %s, which the kernel refused before", ", ".join(allowed))
            self.follow(self._network)
        else:
            self._report_attachments()

    def use_fast_path(self, reason: str) -> None:
        """Use the fast path, or leave all packets to the stack for this reason.

        To be called every few seconds, also with the same reason.
        """
        if reason == self._fast_path_reason:
            self._maps.renew_fast_path()
            return
        self._fast_path_reason = reason
        self._health.set_note("fast path", f"no fast path: {reason}" if reason else None)
        if not reason and self._config.fast_path == "established":
            _log.info("the fast path is used in the middle of connections: netfilter sees the rest")
        elif not reason:
            _log.info("the fast path is used: nothing on this node has to see forwarded packets")
        else:
            _log.info("the fast path is not used: %s (bpfsvc doctor shows details)", reason)
        self._metrics.fast_path_used(not reason)
        self._maps.set_fast_path(used=not reason)
        self.check_shared_devices()
        self._maps.rewrite_settings()
        if self.is_following:
            self._end_fast_outside()

    def check_shared_devices(self) -> None:
        """Take devices out of the fast path that other programs were attached to since."""
        if not self._maps.fast_path:
            return
        shared = self._are_shared(self._sending())
        if self._network:
            shared = with_bridges_of(shared, self._chosen, self._network)
        if shared != self._shared:
            self._take_shared(shared)

    def _end_fast_outside(self) -> None:
        """Leave connections from outside to the stack, if the fast path is not used any more."""
        if self._maps.leaves_outside_fast:
            hand_over(self._installation.pinned)
            self._maps.end_fast_outside()

    def _sending(self) -> tuple[Device, ...]:
        """Return the interfaces that the fast path may send by: ours, and the bridges of ports."""
        network = self._network
        bridges = bridges_of(self._chosen, network) if network else ()
        return (*self._chosen, *bridges)

    def _are_shared(self, devices: Iterable[Device]) -> dict[int, bool]:
        if not self._maps.fast_path:
            return dict.fromkeys((device.index for device in devices), False)
        return self._tc.shared(devices)

    # -- reporting --

    def _report_choice(self, network: Interfaces) -> None:
        """Report patterns of interfaces that choose none, as a typing error does."""
        fault = choice_fault(network.devices, self._config.devices, self._chosen)
        if fault == self._choice_fault:
            return
        self._choice_fault = fault
        if fault:
            _log.error("%s; Services work for sockets of this node at most", fault)
            self._health.set_problem("devices", fault)
        else:
            self._health.clear_problem("devices")

    def _report_attachments(self) -> None:
        self._metrics.attachments(len(self._tc.names), self._sockets.count())
        if self._tc.lost:
            names = ", ".join(self._tc.lost)
            self._health.set_problem(
                "attachments", f"programs are not attached any more to {names}"
            )
        else:
            self._health.clear_problem("attachments")
        refused = _refused_text(self._tc.refused)
        if refused and not self._tc.names:
            self._health.set_problem("refused", f"no interface has programs attached: {refused}")
        else:
            self._health.clear_problem("refused")
        self._health.set_note("attachments", refused)
        declined = self._xdp.declined
        reasons = [f"{name} is not served by XDP: {reason}" for name, reason in declined.items()]
        self._health.set_note("xdp", "; ".join(reasons) or None)


def _refused_text(names: Sequence[str]) -> str | None:
    return f"programs cannot be attached to {', '.join(names)}" if names else None
