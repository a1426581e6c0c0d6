"""Changes in the order of arrival, on their way from several threads to the agent's own."""

from __future__ import annotations

import queue

from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.kube.source import Batch

Event = Batch | Interfaces
"""Changed objects, or a new picture of the interfaces."""


class Stopped(Exception):
    """The agent was asked to stop, or the source has ended."""


class EventQueue:
    """A queue that ends when None is put, and fails when an exception is."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()

    def put(self, event: Event | Exception | None) -> None:
        """Add a change, a failure, or the end; any thread may, and a signal handler."""
        self._queue.put(event)

    def take_event(self, seconds: float) -> Event | None:
        """Wait for the next change and return it; None if there is none for ``seconds``.

        Raises :class:`Stopped` at the end, and every failure that was put.
        """
        try:
            return self._checked(self._queue.get(timeout=seconds))
        except queue.Empty:
            return None

    def take_events(self, seconds: float) -> list[Event]:
        """Wait for the next change, and return all that are there; raises as :meth:`take_event`."""
        first = self.take_event(seconds)
        if first is None:
            return []
        taken = [first]
        while True:
            try:
                taken.append(self._checked(self._queue.get_nowait()))
            except queue.Empty:
                return taken

    @staticmethod
    def _checked(event: Event | Exception | None) -> Event:
        if event is None:
            raise Stopped
        if isinstance(event, Exception):
            raise event
        return event
