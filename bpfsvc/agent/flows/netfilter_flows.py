"""Connections that netfilter translates on this node, written to the programs' map.

When this agent takes over, kube-proxy's connections go on through netfilter, and the programs must
not use their ports. So the map is written before the programs are attached, and again right
afterwards. The programs note connections of netfilter that begin later, if they leave from a
masquerade port (``bpf/path/first/netfilter_ports.h``). Entries of ended connections are removed
here.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

from bpfsvc.base.errors import KernelError
from bpfsvc.base.ports import PortRange
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.conntrack.flows import (
    forgotten,
    masqueraded_flows,
    translated_flows,
)
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow

_log = logging.getLogger("bpfsvc")

_VALUE = bytes(4)


class NetfilterFlows:
    """Keeps the map ``netfilter_flows`` up to date; belongs to the agent's thread."""

    def __init__(self, pinned: Pinned, ports: PortRange) -> None:
        """``ports``: the masquerade ports."""
        self._map = pinned.map("netfilter_flows")
        self._key = pinned.layout.maps["netfilter_flows"].key.pick(*TranslatedFlow._fields)
        self._ports = ports
        self._failed = False

    def begin(self) -> None:
        """Write the map for the first time, and log how many connections there are."""
        self.forget_ended()
        if number := self.refresh():
            connections = count_text(number, "connection")
            _log.info("%s found in conntrack with NAT; their ports are reserved", connections)

    def refresh(self) -> int:
        """Add what netfilter translates now; return how many connections. Log a failure once."""
        return self._try(self._add)

    def forget_ended(self) -> int:
        """Remove what netfilter has forgotten; return how many connections."""
        return self._try(self._remove)

    def _add(self) -> int:
        flows = list(self._wanted())
        self._map.update_many((self._key.pack(*flow), _VALUE) for flow in flows)
        return len(flows)

    def _wanted(self) -> Iterator[TranslatedFlow]:
        """Yield flows with a port that clients may have: their own, or a masquerade port."""
        yield from translated_flows()
        for flow in masqueraded_flows():
            if self._ports.first <= socket.ntohs(flow.source_port) <= self._ports.last:
                yield flow

    def _remove(self) -> int:
        known = {TranslatedFlow(*self._key.unpack(key)): key for key, _ in self._map.items()}
        ended = [known[flow] for flow in forgotten(list(known))]
        self._map.delete_many(ended)
        return len(ended)

    def _try(self, action: Callable[[], int]) -> int:
        try:
            return action()
        except (OSError, KernelError) as error:
            if not self._failed:
                _log.warning(
                    "connections with NAT cannot be listed from conntrack: %s; if kube-proxy has"
                    " run here, a new connection may get the port of an old one",
                    error,
                )
            self._failed = True
            return 0
