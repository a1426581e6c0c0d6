"""A thread that reads netfilter's announcements, and hands connections to the agent's thread."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from bpfsvc.datapath.netlink.conntrack.events import NewFlow, NewFlows
from bpfsvc.migration.shadow.flow import Flow

_WAIT_SECONDS = 0.5
_MOST_WAITING = 1 << 17


class FlowReader:
    """Reads until it is stopped; ``on_failure`` is called with an error that ends it."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        """Subscribe; raises as :class:`NewFlows`. From now on no connection is missed."""
        self._flows = NewFlows()
        self._on_failure = on_failure
        self._read: deque[tuple[float, Flow]] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conntrack", daemon=True)
        self._thread.start()

    @property
    def losses(self) -> int:
        """How often announcements were lost."""
        return self._flows.losses

    def take_flows(self) -> list[tuple[float, Flow]]:
        """Return the connections read since the last call, each with its time (monotonic)."""
        return [self._read.popleft() for _ in range(len(self._read))]

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._flows.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                new = self._flows.read(_WAIT_SECONDS)
                now = time.monotonic()
                if len(self._read) + len(new) > _MOST_WAITING:
                    self._flows.losses += 1
                    continue
                self._read.extend((now, _flow(flow)) for flow in new)
        except OSError as error:
            self._on_failure(error)


def _flow(new: NewFlow) -> Flow:
    original, reply = new
    return Flow(
        original.protocol,
        (original.source, socket.ntohs(original.source_port)),
        (original.destination, socket.ntohs(original.destination_port)),
        (reply.source, socket.ntohs(reply.source_port)),
        reply.destination,
    )
