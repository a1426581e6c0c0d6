"""This node in the kernel, kept up to date: its maps, and the programs attached to its interfaces.

Everything is written again from each new picture of the interfaces, and only differences cost
anything. Addresses are written first: a program must find them when its first packet comes.
"""

from __future__ import annotations

import logging

from bpfsvc.agent.flows.masqueraded_flows import MasqueradedFlows
from bpfsvc.agent.node.all_attachments import AllAttachments
from bpfsvc.agent.node.fast_path import FastPath
from bpfsvc.agent.node.node_maps import NodeMaps, begin_nothing_fast
from bpfsvc.agent.node.pin_keeper import PinWatch
from bpfsvc.agent.reports import Reports
from bpfsvc.base.address import unpack
from bpfsvc.base.errors import BpfsvcError, MapFull
from bpfsvc.base.fast_path import FastPathUse
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.netlink.devices import (
    Device,
    Interfaces,
    addresses,
    choice_fault,
    devices_to_attach,
)
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
        health_checks: ServiceHealthChecks,
        metrics: Observer,
        reports: Reports,
    ) -> None:
        self._devices = config.devices
        self._installation = installation
        self._health_checks = health_checks
        self._metrics = metrics
        self._reports = reports
        self._maps = NodeMaps(config, installation.pinned)
        self._attachments = AllAttachments(config, installation, metrics, reports)
        self._fast_path = FastPath(installation, self._maps, metrics, reports)
        self._pins = PinWatch(installation, metrics, reports)
        self._masqueraded = MasqueradedFlows(installation.pinned)
        self.network: Interfaces | None = None
        """The picture of the interfaces that was followed last."""
        self._chosen: tuple[Device, ...] = ()
        self._choice_fault = ""

    @property
    def is_following(self) -> bool:
        """True once the interfaces are known."""
        return self.network is not None

    @property
    def is_fresh(self) -> bool:
        """True if the programs of this build are not attached yet."""
        return self._installation.fresh

    @property
    def attached(self) -> list[str]:
        """Names of the interfaces that our programs are attached to."""
        return self._attachments.names

    @property
    def with_xdp(self) -> list[str]:
        """Names of the interfaces that XDP serves."""
        return self._attachments.with_xdp

    # -- following --

    def set_node(self, node: Node) -> None:
        """Use what the Node object says; it takes effect with the next picture of interfaces."""
        self._maps.set_node(node)

    def watch_sockets(self, wanted: bool) -> None:
        """Have the kernel report what happens to TCP sockets, or not any more."""
        self._pins.check()
        self._attachments.watch_sockets(wanted)
        self._pins.hold_links()  # or the removed link would count as lost

    def start(self, network: Interfaces) -> None:
        """Attach all programs, and release the build that they replace."""
        installation = self._installation
        if installation.previous:
            # What is fast may be forbidden by now. It has settings of its own.
            begin_nothing_fast(installation.previous)
        installation.attach_begins()
        if installation.copies_connections:
            self._take_over(network)
        else:
            self._maps.write_settings()
            self.follow_network(network)
        self._attachments.attach_sockets()
        installation.complete()
        self._pins.begin()
        self._fast_path.end_outside()
        self._attachments.report()

    def _take_over(self, network: Interfaces) -> None:
        """Attach all programs, while those of the older build serve; then take over from them."""
        try:
            self._installation.call_replaced()
        except BpfsvcError as error:
            _log.warning("datagrams may be lost while an older build is replaced: %s", error)
        self._maps.write_settings("TAKEOVER_ATTACHING")
        self.follow_network(network)
        self._installation.take_over()
        self._maps.write_settings("TAKEOVER_ATTACHED")
        self._installation.put_in_force()
        self._installation.catch_up()
        self._maps.write_settings()

    def follow_network(self, network: Interfaces) -> None:
        """Follow ``network`` with maps and attachments, and report missing attachments."""
        self._pins.check()
        self.network = network
        try:
            self._write(network)
            self._reports.clear_problem("node")
        except MapFull as error:
            self._reports.map_full("node", "not all of this node is known to the programs", error)
        self._pins.hold_links()
        self._attachments.report()
        own, nodeports = addresses(network), self._maps.nodeports
        self._health_checks.listen_on(
            address for family in (4, 6) for address in nodeports.listening(own, family)
        )

    def refresh(self) -> None:
        """Write again what follows from the interfaces, if they are known."""
        if self.network is not None:
            self.follow_network(self.network)

    def _write(self, network: Interfaces) -> None:
        self._chosen = devices_to_attach(network.devices, self._devices)
        self._report_choice(network)
        gone = self._maps.set_network(network)
        self._fast_path.follow_network(network, self._chosen)
        self._attachments.follow_network(network, self._chosen)
        # Now no new connection is masqueraded to these addresses.
        if gone and (removed := self._masqueraded.remove(gone)):
            _log.info(
                "%s of this node are gone: removed %d connections that were masqueraded to them",
                ", ".join(sorted(map(unpack, gone))),
                removed,
            )

    def _report_choice(self, network: Interfaces) -> None:
        """Report patterns of interfaces that choose none, as a typing error does."""
        fault = choice_fault(network.devices, self._devices, self._chosen)
        if fault == self._choice_fault:
            return
        self._choice_fault = fault
        if fault:
            _log.error("%s; only processes of this node can reach Services", fault)
        self._reports.set_problem("devices", fault)

    # -- by the clock --

    def check_pins(self) -> None:
        """Pin again what another program unpinned."""
        self._pins.check()

    def check_attachments(self) -> None:
        """Attach again what another program removed; nothing announces that."""
        self._pins.check()
        if self.network is None or self._pins.is_broken:
            return
        self._fast_path.check_devices()
        if lost := self._attachments.check():
            _log.warning("programs were removed from %s; attaching them again", ", ".join(lost))
            self._metrics.interfaces_lost(len(lost))
            self.follow_network(self.network)
        elif allowed := self._attachments.retry(self._chosen):
            _log.info("attached to %s, which the kernel refused before", ", ".join(allowed))
            self.follow_network(self.network)
        else:
            self._attachments.report()

    def use_fast_path(self, use: FastPathUse) -> None:
        """Use the fast path at this level."""
        if self._fast_path.use(use) and self.is_following:
            self._fast_path.end_outside()

    def check_shared_devices(self) -> None:
        """Take devices out of the fast path that other programs were attached to since."""
        self._fast_path.check_devices()
