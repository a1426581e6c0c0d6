"""All programs that are attached on this node, and the reports about them."""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.agent.node.attachments import (
    SocketAttachments,
    SocketFailures,
    SocketWatch,
    TcAttachments,
)
from bpfsvc.agent.node.xdp import XdpAttachments
from bpfsvc.agent.reports import Reports
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.netlink.devices import Device, Interfaces
from bpfsvc.metrics.observer import Observer


class AllAttachments:
    """The programs at tc hooks, at XDP and at the socket hooks; belongs to the agent's thread."""

    def __init__(
        self, config: Config, installation: Installation, metrics: Observer, reports: Reports
    ) -> None:
        self._metrics = metrics
        self._reports = reports
        self._tc = TcAttachments(config, installation)
        self._xdp = XdpAttachments(config.xdp, installation)
        self._sockets = SocketAttachments(config, installation)
        self._socket_failures = SocketFailures(config, installation, reports)
        self._socket_watch = SocketWatch(config, installation, reports)
        self._destinations = Destinations(installation.pinned)
        self._is_first_build = installation.fresh and not installation.replaces

    @property
    def names(self) -> list[str]:
        """Names of the interfaces that our programs are attached to."""
        return self._tc.names

    @property
    def with_xdp(self) -> list[str]:
        """Names of the interfaces that XDP serves."""
        return self._xdp.served

    def follow_network(self, network: Interfaces, chosen: tuple[Device, ...]) -> None:
        """Attach to the interfaces ``chosen`` of ``network``, and to no others."""
        if self._is_first_build:
            # A connection needs the programs of two interfaces. Until all are attached, the proxy
            # before keeps the new ones. (An earlier build serves meanwhile, and by the same bits.)
            self._destinations.hide()
        try:
            self._tc.follow_network({device.index for device in network.devices}, chosen)
        finally:
            self._destinations.show()
            self._is_first_build = False
        attached = self._tc.indices
        self._xdp.follow_network(network, [device for device in chosen if device.index in attached])

    def attach_sockets(self) -> None:
        """Attach the socket programs, or detach an earlier agent's where there is no socket LB."""
        self._sockets.attach()
        self._socket_failures.attach()

    def watch_sockets(self, wanted: bool) -> None:
        """Have the kernel report what happens to TCP sockets, or not any more."""
        self._socket_watch.use(wanted)

    def check(self) -> list[str]:
        """Return what lost programs; the next :meth:`follow_network` attaches to interfaces."""
        lost = self._sockets.repair() + self._socket_watch.repair()
        return lost + self._tc.check() + self._xdp.check()

    def retry(self, chosen: Iterable[Device]) -> list[str]:
        """Attach where the kernel refused; return the interfaces where it no longer does."""
        return self._tc.retry(chosen)

    def report(self) -> None:
        """Report where programs are attached and where they are not."""
        self._metrics.attachments(len(self._tc.names), self._sockets.count())
        lost = ", ".join(self._tc.lost)
        self._reports.set_problem(
            "attachments", lost and f"programs are not attached any more to {lost}"
        )
        names = ", ".join(self._tc.refused)
        refused = names and f"programs cannot be attached to {names}"
        self._reports.set_problem(
            "refused",
            ""
            if self._tc.names or not refused
            else f"no interface has programs attached: {refused}",
        )
        self._reports.note("attachments", refused or None)
        declined = self._xdp.declined
        reasons = [f"{name} is not served by XDP: {reason}" for name, reason in declined.items()]
        self._reports.note("xdp", "; ".join(reasons) or None)
