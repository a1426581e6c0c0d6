"""TCP connections that the programs translate, by their Service and backend.

Each has an entry for the packets of its client where they arrive, which names the service port; the
other entries follow from it (``bpf/maps/connections.h``). Each entry holds what its sender
acknowledged last: the number of the reset that this sender takes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from socket import IPPROTO_TCP, htons, ntohl, ntohs
from typing import NamedTuple

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.resets import Reset
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.departures import Departed

_ENDS = ("source", "destination", "source_port", "destination_port")
_KEY = (*_ENDS, "protocol", "hook", "zero")
_BECOMES = tuple(f"after.{field}" for field in _ENDS)
_STATE = ("service", "reply", "established", "fin_sent", "fin_received", "reset")
_NUMBERS = ("acknowledged", "window")


class TcpConnection(NamedTuple):
    """A connection: ``client`` sends to ``frontend``; behind ingress, ``routed`` to ``backend``.

    ``created``: when its first packet came, of time.monotonic().
    """

    client: Place
    frontend: Place
    routed: Place
    backend: Place
    established: bool
    created: float


class TcpConnections:
    """The connections of one node."""

    def __init__(self, pinned: Pinned, pause: Callable[[], object] = lambda: None) -> None:
        """Open the maps; raise :class:`KernelError` if their layout is not the one known here.

        ``pause()`` is called after each thousand entries that are read.
        """
        self._pause = pause
        self._connections = pinned.map("connections")
        self._new_connections = pinned.map("new_connections")
        self._gc = GcProgram(pinned)
        layout = pinned.layout.maps["connections"]
        self._key = layout.key.expect("the keys of map connections", _KEY)
        self._state = layout.value.pick(*_STATE)
        self._becomes = layout.value.pick(*_BECOMES)
        self._created = layout.value.pick("created")
        self._numbers = layout.value.pick(*_NUMBERS)
        constant = pinned.layout.constant
        self._ingress, self._egress = constant("HOOK_INGRESS"), constant("HOOK_EGRESS")
        self._certain = constant("RESET_CERTAIN")

    def to(
        self, services: Collection[int], is_wanted: Callable[[Departed], bool]
    ) -> list[tuple[Departed, TcpConnection]]:
        """Return the connections of some service ids to some backends that are not over.

        ``is_wanted``: True for the service id and the backend of a connection.
        """
        return [
            (departed, connection)
            for service, connection in self._of(services)
            if is_wanted(departed := (service, connection.backend))
        ]

    def remove(self, connections: Iterable[TcpConnection]) -> list[Reset]:
        """Remove connections; return the resets for both sides, as far as their numbers are known.

        A number must not change between its reading and the moment from which packets are no
        longer translated, so each entry is read by its deletion. A connection that is not
        established is removed alone: the client sends its SYN again.
        """
        resets: list[Reset] = []
        opening: list[bytes] = []
        for connection in connections:
            if connection.established:
                resets += self._take(connection)
            else:
                opening.append(self._key_of(connection.backend, connection.routed, self._egress))
        self._gc.remove(opening, force=True)
        return resets

    def _of(self, services: Collection[int]) -> Iterator[tuple[int, TcpConnection]]:
        """Yield service ids and their connections; those that are over are not among them."""
        # A connection moves from the one to the other, and never back.
        for table in (self._new_connections, self._connections):
            for block in table.blocks():
                width = len(block.values) // block.size
                # Of all entries; what most of them need is done in place.
                for at, (service, reply, established, *over) in enumerate(
                    self._state.iter_unpack(block.values)
                ):
                    if reply or service not in services or self._is_over(*over):
                        continue
                    *ends, _, hook, _ = self._key.unpack(block.key(at))
                    if hook == self._ingress:
                        value = block.values[at * width : (at + 1) * width]
                        places = (*_places(*ends), *_places(*self._becomes.unpack(value)))
                        (created,) = self._created.unpack(value)
                        yield (
                            service,
                            TcpConnection(*places, bool(established), created / NS_PER_SECOND),
                        )
                self._pause()

    def _is_over(self, fin_sent: int, fin_received: int, reset: int) -> bool:
        return bool(reset & self._certain or (fin_sent and fin_received))

    def _take(self, connection: TcpConnection) -> Iterator[Reset]:
        """Remove the entries of a connection, and yield its resets."""
        key = self._key_of(connection.client, connection.frontend, self._ingress)
        now = self._connections.lookup(key)
        if now is None or _places(*self._becomes.unpack(now)) != (
            connection.routed,
            connection.backend,
        ):
            return  # another connection has this key since
        if value := self._connections.take(key):
            yield from self._reset(connection.frontend, connection.client, [value])
        values = [
            self._connections.take(
                self._key_of(connection.backend, connection.routed, self._egress)
            )
        ]
        source = connection.routed
        masquerade = self._key_of(connection.routed, connection.backend, self._egress)
        if value := self._connections.take(masquerade):
            source, _ = _places(*self._becomes.unpack(value))
            values.append(
                self._connections.take(self._key_of(connection.backend, source, self._ingress))
            )
        yield from self._reset(source, connection.backend, filter(None, values))

    def _reset(self, source: Place, to: Place, values: Iterable[bytes]) -> Iterator[Reset]:
        """Yield the reset, with a number from the entries of the receiver's packets, if any."""
        number = _latest(self._numbers.unpack(value) for value in values)
        if number is not None:
            yield Reset(source, to, number)

    def _key_of(self, source: Place, destination: Place, hook: int) -> bytes:
        (address, port), (other, other_port) = source, destination
        ports = htons(port), htons(other_port)
        return self._key.pack(address, other, *ports, IPPROTO_TCP, hook, 0)


def _places(source: bytes, destination: bytes, port: int, to: int) -> tuple[Place, Place]:
    """Return both ends of a flow; ports are in network order."""
    return (source, ntohs(port)), (destination, ntohs(to))


def _latest(numbers: Iterable[tuple[int, int]]) -> int | None:
    """Return the latest number that was acknowledged; None if nothing is known.

    Numbers and windows are as they are on the wire; numbers begin again at 0.
    """
    known = [ntohl(number) for number, window in numbers if number or window]
    if not known:
        return None
    ahead = max(_signed(number - known[0]) for number in known)
    return (known[0] + ahead) & 0xFFFFFFFF


def _signed(difference: int) -> int:
    return int(struct.unpack("=i", struct.pack("=I", difference & 0xFFFFFFFF))[0])
