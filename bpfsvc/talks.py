"""Peers that have connected to an HTTP server and have not yet said all they want.

Nobody may hold a server up: all peers are waited for at once, with a bound on their number, on what
they say and on the time they take, and the one that has talked longest makes room for the next.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")

_LONGEST_REQUEST = 16384  # bytes

_PAUSE = 0.1
"""Seconds to wait when there are no files left."""


class _Talk(NamedTuple, Generic[_T]):
    about: _T
    received: bytearray
    until: float


class Talks(Generic[_T]):
    """The peers of one server, all in the thread that waits on ``selector``."""

    def __init__(self, selector: selectors.BaseSelector, *, patience: float, most: int) -> None:
        """``patience``: seconds that a peer has to say what it wants; ``most``: peers at a time."""
        self._selector = selector
        self._patience = patience
        self._most = most
        self._talks: dict[socket.socket, _Talk[_T]] = {}

    def accept(self, listener: socket.socket, about: _T) -> None:
        """Welcome a peer; ``about`` comes back with what it says."""
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return  # or it has gone again
        if len(self._talks) >= self._most:
            self._make_room()
        peer.setblocking(False)
        self._talks[peer] = _Talk(about, bytearray(), time.monotonic() + self._patience)
        self._selector.register(peer, selectors.EVENT_READ)

    def hear(self, peer: socket.socket) -> tuple[_T, bytes] | None:
        """Take what a peer says; once it is a request, the peer is the caller's to answer."""
        talk = self._talks.get(peer)
        if talk is None:
            return None
        try:
            data = peer.recv(_LONGEST_REQUEST)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        talk.received.extend(data)
        if b"\r\n\r\n" in talk.received or b"\n\n" in talk.received:
            self._forget(peer)
            return talk.about, bytes(talk.received)
        if not data or len(talk.received) >= _LONGEST_REQUEST:
            self._end(peer)
        return None

    def give_up(self, now: float) -> None:
        """Break off with those who have had their time."""
        for peer in [peer for peer, talk in self._talks.items() if talk.until < now]:
            self._end(peer)

    def close(self) -> None:
        """Break off with all."""
        for peer in list(self._talks):
            self._end(peer)

    def _make_room(self) -> None:
        """End the oldest talk; without any, the files are others', and it must wait."""
        if self._talks:
            self._end(next(iter(self._talks)))
        else:
            time.sleep(_PAUSE)

    def _end(self, peer: socket.socket) -> None:
        self._forget(peer)
        peer.close()

    def _forget(self, peer: socket.socket) -> None:
        del self._talks[peer]
        self._selector.unregister(peer)
