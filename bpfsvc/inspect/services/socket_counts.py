"""Connections that sockets carry (socket LB), as far as the kernel knows of them.

A translated socket has no entry in ``connections``. The kernel tells of some in two places:

* the kernel lists the TCP sockets of the node's network namespace together with their translations;
* the loads of backends, of Services that count them, have all sockets of the node.

Sockets of pods are in no list. They are translated only where neither scheduler, weights nor
removal need the programs at tc. Until it ends, a TCP socket counts as active, and a UDP socket as
inactive.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping

from bpfsvc.datapath.maps.backend_loads import Load, read_load
from bpfsvc.inspect.maps import node
from bpfsvc.inspect.policies import KEEP, RANDOM, PolicyTexts
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.services.connection_counts import Counts
from bpfsvc.inspect.services.facts import ACTIVE, INACTIVE
from bpfsvc.services.entries import Place, Policies

_PARTIAL: Mapping[str, tuple[str, ...]] = {"TCP": (ACTIVE,), "UDP": (INACTIVE,), "SCTP": ()}
"""The numbers that sockets of a protocol add to. SCTP sockets are not translated."""


class SocketCounts:
    """The known sockets of a node. ``socket_lb``: off, host, all; "" if not known."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        settings = {row[0]: row[1] for row in node.settings(reader).rows}
        self.socket_lb = str(settings.get("socket_lb", ""))
        sockets = reader.node_sockets() if node.is_node_namespace(reader) else None
        self.listed = sockets is not None
        """True if the node's TCP sockets could be listed."""
        self._of: dict[int, Counter[Place]] = {}
        self._half_open: dict[int, Counter[Place]] = {}
        for service, backend, half_open in sockets or ():
            counters = self._half_open if half_open else self._of
            counters.setdefault(service, Counter())[backend] += 1

    @property
    def services(self) -> set[int]:
        """The service ids of the sockets that are listed."""
        return self._of.keys() | self._half_open.keys()

    def with_sockets(
        self, service: int, counts: Mapping[Place, Counts], counting: Mapping[Place, int]
    ) -> dict[Place, Counts]:
        """Return connections of a service id by backend, with the connections of sockets.

        * ``counts``: the connections without sockets.
        * ``counting``: the ids of the counters of backends with counted loads.
        """
        listed = self._of.get(service, Counter())
        half_open = self._half_open.get(service, Counter())
        totals: dict[Place, Counts] = {}
        for backend in counts.keys() | listed.keys() | half_open.keys() | counting.keys():
            of_packets = counts.get(backend, Counts())
            load = self._load(counting[backend]) if backend in counting else Load()
            # A socket that is older than the scheduler is listed, and not in the load. The load has
            # attempts, too.
            sockets = max(load.active - half_open[backend], listed[backend])
            total = Counts(
                of_packets.active + sockets,
                of_packets.inactive + max(load.inactive, 0),
                of_packets.half_open + half_open[backend],
            )
            if any(total):
                totals[backend] = total
        return totals

    def _load(self, counters: int) -> Load:
        raw = self._reader.value("backend_loads", counters.to_bytes(4, sys.byteorder))
        record = self._reader.layout.maps["backend_loads"].value
        return read_load(raw, record).sockets if raw else Load()

    def partial(
        self, protocol: str, policies: Collection[Policies], texts: PolicyTexts
    ) -> tuple[str, ...]:
        """Return which numbers of a service port leave out connections that sockets carry.

        ``protocol``: empty if it is not known. ``policies``: the policies of its frontends.
        """
        if self.socket_lb == "off":
            return ()
        if policies and all(map(texts.counts, policies)):
            return ()
        if protocol == "TCP" and self.listed:
            by_tc = policies and all(_is_left_to_tc(each_policy, texts) for each_policy in policies)
            if by_tc or self.socket_lb == "host":
                return ()
        return _PARTIAL.get(protocol, (ACTIVE, INACTIVE))


def _is_left_to_tc(policies: Policies, texts: PolicyTexts) -> bool:
    """True if the sockets of pods are not translated (``slot_choose`` in the C sources)."""
    if texts.schedule(policies) != RANDOM or policies.counted:
        return True
    return bool(policies.pod.table) or texts.removal(policies) != KEEP
