"""Results of connects to backends (bpf/maps/backend_outcomes.h), and ejected backends."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.services.scheduling.quarantine import Outcome

_ID = struct.Struct("=I")

_SAID = ("until", "state")
"""Fields that the agent writes."""


class BackendOutcomes:
    """The programs' notes; reading deletes them."""

    def __init__(self, pinned: Pinned) -> None:
        self._notes = pinned.map("backend_outcomes")
        self._note = pinned.layout.maps["backend_outcomes"].value.pick(*Outcome._fields)

    def take(self) -> dict[int, Outcome]:
        """Return the results since the last call, by the ids of counters."""
        notes = list(self._notes.items())
        # A result that a program adds between reading and deletion is lost: one of many, at most.
        self._notes.delete_many([key for key, _ in notes])
        return {_ID.unpack(key)[0]: Outcome(*self._note.unpack(raw)) for key, raw in notes}


class QuarantinedMap:
    """The ejected backends, and the backends on trial (half-open).

    The programs note in the entry of a backend on trial that a probe is under way.
    """

    def __init__(self, pinned: Pinned) -> None:
        self._map = pinned.map("quarantined")
        self._record = pinned.layout.maps["quarantined"].value
        self._said = self._record.pick(*_SAID)
        self._away, self._trial = _states(pinned.layout)

    def set(self, states: Mapping[int, float | None]) -> None:
        """Write all states by the ids of counters: ejected until when (monotonic); None: on trial.

        An entry with the same state stays as it is: a probe may be under way.
        """
        room = self._map.max_entries
        wanted = {
            _ID.pack(counters): (0, self._trial)
            if until is None
            else (int(until * NS_PER_SECOND), self._away)
            for counters, until in list(states.items())[:room]
        }
        have = {key: self._said.unpack(raw) for key, raw in self._map.items()}
        self._map.delete_many([key for key in have if key not in wanted])
        self._map.update_many(
            (key, self._record.pack(dict(zip(_SAID, said, strict=True))))
            for key, said in wanted.items()
            if have.get(key) != said
        )


def _states(layout: Layout) -> tuple[int, int]:
    return layout.constant("QUARANTINE_AWAY"), layout.constant("QUARANTINE_TRIAL")


def read_states(entries: Iterable[tuple[bytes, bytes]], layout: Layout) -> dict[int, bool]:
    """Return the backends in quarantine by the ids of their counters: True if on trial."""
    _, trial = _states(layout)
    state = layout.maps["quarantined"].value.pick("state")
    return {_ID.unpack(key)[0]: state.unpack(raw)[0] == trial for key, raw in entries}
