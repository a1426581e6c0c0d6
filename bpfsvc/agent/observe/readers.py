"""The commands that read events, each at a connection of its own.

A reader that is slow loses events, and is told how many. It never holds up the others, and what the
agent keeps for it is bounded.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from bpfsvc.model.events import Event, encode_event

MOST_READERS = 16

_MOST_BYTES = 1 << 20
"""That wait for one reader: some 3,000 events."""

_CLOSE_SECONDS = 10.0
"""For a reader that does not follow to take what is remembered."""


class Wish(NamedTuple):
    """What a reader asks for.

    * ``last``: so many of the events that are remembered; None for all of them.
    * ``since``, ``until``: times of these, in seconds since 1970; None without a limit.
    * ``follow``: and the events from now on.
    * ``drops``: among these, packets that other parts of the node drop.
    """

    last: int | None = 0
    since: float | None = None
    until: float | None = None
    follow: bool = True
    drops: bool = False


class Reader:
    """One reader; belongs to one thread."""

    def __init__(self, client: socket.socket, wish: Wish, node: str) -> None:
        self._client = client
        self._node = node
        self._pending = bytearray()
        self._lost = 0
        self._ends_at = 0.0 if wish.follow else time.monotonic() + _CLOSE_SECONDS
        self.is_gone = client.fileno() < 0
        self.wish = wish
        if not self.is_gone:
            client.setblocking(False)

    def put(self, line: bytes) -> None:
        """Add a line, or count it as lost."""
        if len(self._pending) + len(line) > _MOST_BYTES:
            self._lost += 1
            return
        self._tell_loss()
        self._pending += line

    def _tell_loss(self) -> None:
        if self._lost:
            self._pending += self.loss(self._lost, "reader")
            self._lost = 0

    def loss(self, number: int, by: str) -> bytes:
        """Return the line that says that events are missing."""
        return encode_event(Event(time.time(), self._node, lost=number, lost_by=by))

    def send(self) -> None:
        """Send what the reader takes now; ``is_gone`` says whether it is still there."""
        if not self._pending:
            self._tell_loss()
        try:
            while self._pending and not self.is_gone:
                sent = self._client.send(memoryview(self._pending)[: 1 << 16])
                del self._pending[:sent]
            self.is_gone |= self._has_left()
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        if self._ends_at and (not self._pending or time.monotonic() > self._ends_at):
            self.is_gone = True

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _has_left(self) -> bool:
        return not self._client.recv(1024)
