"""Packets of Services that other parts of the node drop: told while a reader asks for them.

The kernel's tracepoint calls the program for each packet that the kernel drops, so the program is
attached for the first such reader and detached after the last one. Its link is not pinned: it ends
with the agent, however that ends. With ``--count-drops-elsewhere`` the agent is such a reader.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.attach import tracepoints
from bpfsvc.datapath.loader import kernel_types
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned
from bpfsvc.metrics.observer import Observer

REASON = "SKB_DROP_REASON_"

_IGNORED = (
    "NOT_DROPPED_YET",
    "SKB_NOT_DROPPED_YET",
    "SKB_CONSUMED",
    # tc's, of bpfsvc and of others: bpfsvc has events of its own for what its programs drop.
    "TC_INGRESS",
    "TC_EGRESS",
    # Ends of connections, and data that the receiver has already.
    "QUEUE_PURGE",
    "TCP_ABORT_ON_DATA",
    "TCP_CLOSE",
    "TCP_OFOMERGE",
    "TCP_OLD_DATA",
    "TCP_RESET",
)
"""Reasons that are no drop elsewhere."""


class DropsElsewhere:
    """Attaches the program for readers; any thread may call this."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        """``directory()``: where the programs are pinned."""
        self._directory = directory
        self._lock = threading.Lock()
        self._readers = 0
        self._link = -1
        self._reasons: dict[int, str] = {}

    def enter(self) -> None:
        """Count a reader; raise :class:`KernelError` if this node cannot tell of such drops."""
        with self._lock:
            if not self._readers:
                self._attach()
            self._readers += 1

    def leave(self) -> None:
        """Count a reader that :meth:`enter` has counted no more."""
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self._detach()

    def stop(self) -> None:
        """Detach the program, whoever reads."""
        with self._lock:
            self._detach()

    def reason(self, number: int) -> str:
        """Return the kernel's name of a reason."""
        name = self._reasons.get(number)
        # Subsystems (OVS, mac80211) have numbers of their own without names here.
        return REASON + (name if name else str(number))

    def _attach(self) -> None:
        types = kernel_types.drop_types()
        if types is None or not types.reasons:
            raise _refusal(kernel_types.missing_for_drops())
        try:
            pinned = Pinned(self._directory())
            try:
                ignored = [number for number, name in types.reasons.items() if name in _IGNORED]
                self._link = tracepoints.attach_dropped(pinned, types, ignored)
            finally:
                pinned.close()
        except NotLoaded as error:
            raise _refusal("CAP_PERFMON of the agent when it loads its programs") from error
        except OSError as error:
            raise _refusal(f"the tracepoint skb:kfree_skb ({error.strerror})") from error
        self._reasons = types.reasons

    def _detach(self) -> None:
        if self._link >= 0:
            os.close(self._link)
            self._link = -1


class DropCounter:
    """Counts such drops for metrics, if that is wanted and this node can tell of them."""

    def __init__(
        self, metrics: Observer, report: Callable[[str], None], *, is_wanted: bool
    ) -> None:
        """``report(text)`` is called once if they are wanted and cannot be counted."""
        self._metrics = metrics
        self._report = report
        self._is_wanted = is_wanted
        self.is_on = False

    def start(self, elsewhere: DropsElsewhere) -> None:
        """Be a reader for as long as the agent runs."""
        if not self._is_wanted:
            return
        try:
            elsewhere.enter()
        except BpfsvcError as error:
            self._report(f"--count-drops-elsewhere counts nothing: {error}")
            return
        self.is_on = True
        self._metrics.drops_elsewhere_counted()

    def add(self, service_id: int, reason: str, packets: int) -> None:
        """Count packets of a service port; 0: of an address that no Service has."""
        if self.is_on and service_id:
            self._metrics.dropped_elsewhere(service_id, reason, packets)


def _refusal(missing: str) -> KernelError:
    return KernelError(f"drops elsewhere cannot be told: this node lacks {missing}")
