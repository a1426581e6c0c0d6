"""Requests to the program ``gc`` (``bpf/path/agent/gc.h``), which handles flows in the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.requests import send


class GcProgram:
    """The program of one build."""

    def __init__(self, pinned: Pinned) -> None:
        self._program = pinned.program("gc")
        self._batch = pinned.layout.constant("GC_FLOWS")
        self._header = pinned.layout.struct("gc_request")

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
        return self._run(flows, force=force, crowded=crowded, early_ports=early_ports)

    def note(self, flows: Sequence[bytes]) -> None:
        """Set the bytes of the flows' destination ports in the filter, and remove nothing."""
        self._run(flows, note=True)

    def _run(self, flows: Sequence[bytes], **flags: bool) -> int:
        def header(count: int) -> bytes:
            return self._header.pack({"flows": count, **flags})

        return send(self._program, flows, self._batch, header)
