"""Requests to the program ``recount`` (``bpf/path/agent/recount.h``), which corrects loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.requests import send

_UNSIGNED = 0xFFFFFFFF
"""The layout does not say which numbers have a sign; these bits are all there are."""


class RecountProgram:
    """The program of one build."""

    def __init__(self, pinned: Pinned) -> None:
        self._program = pinned.program("recount")
        self._batch = pinned.layout.constant("RECOUNT_RECORDS")
        self._header = pinned.layout.struct("recount_header")
        self._difference = pinned.layout.struct("load_difference")

    def count(self, flows: Sequence[bytes]) -> int:
        """Have connections count that do not yet; return how many there were.

        ``flows``: keys of ``connections``.
        """
        return self._run(flows, are_flows=True)

    def add(self, differences: Iterable[tuple[int, int, int]]) -> None:
        """Add to loads: id of the counters, difference of active and of inactive connections."""
        names, pack = self._difference.names, self._difference.pack
        self._run(
            [
                pack(dict(zip(names, (number & _UNSIGNED for number in difference), strict=True)))
                for difference in differences
            ],
            are_flows=False,
        )

    def _run(self, records: Sequence[bytes], *, are_flows: bool) -> int:
        def header(count: int) -> bytes:
            return self._header.pack({"records": count, "flows": are_flows})

        return send(self._program, records, self._batch, header)
