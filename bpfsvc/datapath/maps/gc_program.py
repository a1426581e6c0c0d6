"""Requests to the program ``gc`` (``bpf/path/agent/gc.h``), which handles flows in the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.pins import Pinned

_QUEUE_RUNS = 128
"""How often the program takes flows from a queue in one call: a millisecond, at most."""

_QUEUES = ("GC_CLOSED", "GC_TIME_WAIT")


class GcProgram:
    """The program of one build."""

    def __init__(self, pinned: Pinned) -> None:
        self._program = pinned.program("gc")
        self._header = pinned.layout.struct("gc_request")
        constants = pinned.layout.constants
        self._in_run = pinned.layout.constant("GC_FLOWS")
        # An older build handles all in one run, and has no queues.
        self._in_request = constants.get("GC_LISTED_FLOWS", self._in_run)
        self._queues = [constants[name] for name in _QUEUES if name in constants]

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
        return self._send(flows, force=force, crowded=crowded, early_ports=early_ports)

    def note(self, flows: Sequence[bytes]) -> None:
        """Set the bytes of the flows' destination ports in the filter, and remove nothing."""
        self._send(flows, note=True)

    def remove_closed(self, *, crowded: bool = False, early_ports: bool = False) -> int:
        """Remove what is over of the connections whose end the programs have seen.

        Return how many pairs of entries there were. The flags are those of :meth:`remove`.
        """
        removed = 0
        for queue in self._queues:
            header = {"source": queue, "crowded": crowded, "early_ports": early_ports}
            request = self._header.pack(header)
            last = self._in_run
            while last == self._in_run:
                _, after = syscall.program_test_run(self._program, request, repeat=_QUEUE_RUNS)
                answer = self._header.unpack(after)
                last = int(answer["taken"])
                removed += int(answer["removed"])
        return removed

    def _send(self, flows: Sequence[bytes], **flags: bool) -> int:
        removed = 0
        for start in range(0, len(flows), self._in_request):
            some = flows[start : start + self._in_request]
            request = self._header.pack({"flows": len(some), **flags}) + b"".join(some)
            runs = -(-len(some) // self._in_run)
            verdict, after = syscall.program_test_run(self._program, request, repeat=runs)
            # The verdict is that of the last run.
            removed += int(self._header.unpack(after)["removed"]) if runs > 1 else verdict
        return removed
