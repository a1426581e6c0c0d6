"""What netfilter translates on this node, written to the programs' map.

kube-proxy's connections go on when this agent takes over, through netfilter, and it is unknown to
the programs which ports they have. So they are told before they are attached, and again right
afterwards. Connections of netfilter that begin later are noted by the programs, if they leave from
a masquerade port (``bpf/path/first/netfilter_ports.h``). What has ended is removed here.
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
        """``ports``: those that the programs masquerade to."""
        self._map = pinned.map("netfilter_flows")
        self._key = pinned.layout.maps["netfilter_flows"].key.pick(*TranslatedFlow._fields)
        self._ports = ports
        self._failed = False

    def begin(self) -> None:
        """Look for the first time, and say what there is."""
        self.forget_ended()
        found = self.refresh()
        if found:
            connections = count_text(found, "connection")
            _log.info("netfilter has %s that it translates: their ports are not used", connections)

    def refresh(self) -> int:
        """Add what netfilter has now; return how many. A failure is logged, once."""
        return self._try(self._add)

    def forget_ended(self) -> int:
        """Remove what netfilter has forgotten; return how many."""
        return self._try(self._remove)

    def _add(self) -> int:
        flows = list(self._wanted())
        self._map.update_many((self._key.pack(*flow), _VALUE) for flow in flows)
        return len(flows)

    def _wanted(self) -> Iterator[TranslatedFlow]:
        """Yield what may collide: clients keep their ports, or get one of the range."""
        yield from translated_flows()
        for flow in masqueraded_flows():
            if self._ports.first <= socket.ntohs(flow.source_port) <= self._ports.last:
                yield flow

    def _remove(self) -> int:
        known = {TranslatedFlow(*self._key.unpack(key)): key for key, _ in self._map.items()}
        ended = [known[flow] for flow in forgotten(list(known))]
        self._map.delete_many(ended)
        return len(ended)

    def _try(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except (OSError, KernelError) as error:
            if not self._failed:
                _log.warning(
                    "the connections that netfilter translates cannot be listed: %s; a new one may"
                    " get the port of one of them, if kube-proxy has run here",
                    error,
                )
            self._failed = True
            return 0
