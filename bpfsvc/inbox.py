"""What happens, in the order of arrival, on its way from several threads to the one that acts."""

from __future__ import annotations

import queue

from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.sources import Batch

Happening = Batch | Network
"""Objects or interfaces that changed."""


class Stopped(Exception):
    """It is over: whoever acts was asked to end, or there is nothing more to come."""


class Inbox:
    """A queue that ends when None is put, and fails when an exception is."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Happening | Exception | None] = queue.SimpleQueue()

    def put(self, event: Happening | Exception | None) -> None:
        """Add what happened, what failed, or the end; any thread may, and a signal handler."""
        self._queue.put(event)

    def take(self, seconds: float) -> Happening | None:
        """Wait for what is next; None if nothing happens meanwhile.

        Raises :class:`Stopped` at the end, and whatever failed.
        """
        try:
            return self._opened(self._queue.get(timeout=seconds))
        except queue.Empty:
            return None

    def drain(self, seconds: float) -> list[Happening]:
        """Wait for what is next, and take all that is there; raises as :meth:`take`."""
        first = self.take(seconds)
        if first is None:
            return []
        taken = [first]
        while True:
            try:
                taken.append(self._opened(self._queue.get_nowait()))
            except queue.Empty:
                return taken

    @staticmethod
    def _opened(event: Happening | Exception | None) -> Happening:
        if event is None:
            raise Stopped
        if isinstance(event, Exception):
            raise event
        return event
