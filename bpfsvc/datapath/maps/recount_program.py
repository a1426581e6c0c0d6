"""Requests to the program ``recount`` (``bpf/path/recount.h``), which adds to loads of backends."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.pins import Pinned

_HEADER = struct.Struct("=14xBB")
"""``struct recount_header``: the number of records, and whether they are flows."""

_DIFFERENCE = struct.Struct("=Iii")
"""``struct load_difference``: id of the counters, active connections, inactive ones."""


class RecountProgram:
    """The program of one build."""

    def __init__(self, pinned: Pinned) -> None:
        self._program = pinned.program("recount")
        self._batch = pinned.layout.constant("RECOUNT_RECORDS")

    def count(self, flows: Sequence[bytes]) -> int:
        """Have connections count that do not yet; return how many there were.

        ``flows``: keys of ``connections``.
        """
        return self._run(flows, are_flows=True)

    def add(self, differences: Iterable[tuple[int, int, int]]) -> None:
        """Add to loads: id of the counters, difference of active and of inactive connections."""
        self._run([_DIFFERENCE.pack(*one) for one in differences], are_flows=False)

    def _run(self, records: Sequence[bytes], *, are_flows: bool) -> int:
        handled = 0
        for start in range(0, len(records), self._batch):
            some = records[start : start + self._batch]
            request = _HEADER.pack(len(some), are_flows) + b"".join(some)
            handled += syscall.program_test_run(self._program, request)[0]
        return handled
