"""Requests to the program ``gc`` (``bpf/path/agent/gc.h``), which handles flows in the kernel."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.requests import send

_HEADER = struct.Struct("=14xBBBBB")
"""``struct gc_request``: how many flows follow, and its four flags."""


class GcProgram:
    """The program of one build."""

    def __init__(self, pinned: Pinned) -> None:
        self._program = pinned.program("gc")
        self._batch = pinned.layout.constant("GC_FLOWS")

    def remove(
        self,
        flows: Sequence[bytes],
        *,
        force: bool = False,
        crowded: bool = False,
        early_ports: bool = False,
    ) -> int:
        """Remove the connections of those flows that are over; return how many there were.

        * ``flows``: keys of ``connections``.
        * ``force``: in any state, and their masquerades.
        * ``crowded``: those that are closed or half open early.
        * ``early_ports``: without waiting until peers have forgotten a port of ours.
        """
        return self._run(flows, force, crowded, early_ports, False)

    def note(self, flows: Sequence[bytes]) -> None:
        """Set the bytes of the flows' destination ports in the filter, and remove nothing."""
        self._run(flows, False, False, False, True)

    def _run(self, flows: Sequence[bytes], *flags: bool) -> int:
        def header(count: int) -> bytes:
            return _HEADER.pack(count, *flags)

        return send(self._program, flows, self._batch, header)
