"""Requests to the program ``recount`` (``bpf/path/agent/recount.h``), which corrects loads."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.requests import send

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
        def header(count: int) -> bytes:
            return _HEADER.pack(count, are_flows)

        return send(self._program, records, self._batch, header)
