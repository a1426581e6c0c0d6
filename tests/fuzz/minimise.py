"""Makes a failing history short: delta debugging, and then each event as plain as it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fuzz.events import Event, Packet, Pause
from tests.fuzz.frames import ACK, PSH

Fails = Callable[[Sequence[Event]], bool]


def minimised(events: Sequence[Event], fails: Fails, tries: int = 2000) -> list[Event]:
    """Return a part of a failing history that still fails, with plainer events.

    No single event of it can be left out, unless ``tries`` were too few.
    """
    left = _Tries(fails, tries)
    kept = list(events)
    parts = 2
    while len(kept) >= 2 and left:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            shorter = kept[:start] + kept[start + size :]
            if shorter and left.fails(shorter):
                kept, parts = shorter, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    for at in range(len(kept)):
        for change in _CHANGES:
            plainer = change(kept[at])
            if plainer != kept[at] and left.fails([*kept[:at], plainer, *kept[at + 1 :]]):
                kept[at] = plainer
    return kept


class _Tries:
    def __init__(self, fails: Fails, limit: int) -> None:
        self._fails = fails
        self._left = limit

    def __bool__(self) -> bool:
        return self._left > 0

    def fails(self, events: Sequence[Event]) -> bool:
        """True if a history fails; False if there is no try left."""
        if not self._left:
            return False
        self._left -= 1
        return self._fails(events)


def _changed(change: Callable[[Packet], Packet]) -> Callable[[Event], Event]:
    return lambda event: change(event) if isinstance(event, Packet) else event


def _shorter(ns: int) -> Callable[[Event], Event]:
    def change(event: Event) -> Event:
        return Pause(ns) if isinstance(event, Pause) and event.ns > ns else event

    return change


_CHANGES: list[Callable[[Event], Event]] = [
    _changed(lambda packet: packet._replace(damage=0)),
    _changed(lambda packet: packet._replace(unsummed=False)),
    _changed(lambda packet: packet._replace(forged=False)),
    _changed(lambda packet: packet._replace(extension=0)),
    _changed(lambda packet: packet._replace(cut=0)),
    _changed(lambda packet: packet._replace(kept=0)),
    _changed(lambda packet: packet._replace(length=0)),
    _changed(lambda packet: packet._replace(flags=packet.flags & ~PSH)),
    _changed(lambda packet: packet._replace(flags=ACK)),
    _changed(lambda packet: packet._replace(sequence=0)),
    _changed(lambda packet: packet._replace(number=0)),
    *(_shorter(ns) for ns in (125_000_000_000, 11_000_000_000, 3_000_000_000, 1_000_000)),
]
