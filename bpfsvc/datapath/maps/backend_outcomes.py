"""How attempts to connect to backends ended (bpf/maps/backend_outcomes.h), and who is left out."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.services.scheduling.quarantine import Outcome

_ID = struct.Struct("=I")

_SAID = ("until", "state")
"""What the agent says of a backend."""


class BackendOutcomes:
    """The programs' notes, which are taken away when they are read."""

    def __init__(self, pinned: Pinned) -> None:
        self._notes = pinned.map("backend_outcomes")
        self._note = pinned.layout.maps["backend_outcomes"].value.pick(*Outcome._fields)

    def take(self) -> dict[int, Outcome]:
        """Return what was noted since the last call, by the ids of counters."""
        notes = list(self._notes.items())
        # What a program adds between reading and deletion is lost: one of many, at most.
        self._notes.delete_many([key for key, _ in notes])
        return {_ID.unpack(key)[0]: Outcome(*self._note.unpack(raw)) for key, raw in notes}


class QuarantinedMap:
    """Which backends get no new connections, and which are on trial.

    The programs note there which of these is being tried.
    """

    def __init__(self, pinned: Pinned) -> None:
        self._map = pinned.map("quarantined")
        self._record = pinned.layout.maps["quarantined"].value
        self._said = self._record.pick(*_SAID)
        self._away, self._trial = _states(pinned.layout)

    def set(self, states: Mapping[int, float | None]) -> None:
        """Write all: by the id of the counters until when (monotonic); None: on trial.

        An entry whose state is the same stays as it is: a connection may have its trial.
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
