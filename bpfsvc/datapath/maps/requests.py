"""Requests to programs that the agent runs: a header and records, a few in each test packet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfsvc.datapath import syscall


def send(
    program: int, records: Sequence[bytes], at_once: int, header: Callable[[int], bytes]
) -> int:
    """Have a program handle records; return how many it has handled.

    ``at_once``: the most records of one request. ``header``: returns the header for a number of
    records.
    """
    handled = 0
    for start in range(0, len(records), at_once):
        some = records[start : start + at_once]
        handled += syscall.program_test_run(program, header(len(some)) + b"".join(some))[0]
    return handled
