"""CPU time of others, to the nanosecond.

A process's clock holds what the kernel did for it, packets on their way through both network stacks
among that: a softirq is charged to whom it interrupts. What is too much for that is left to
``ksoftirqd`` of the core, whose clock is read too. Where a kernel keeps the time of interrupts
apart (``CONFIG_IRQ_TIME_ACCOUNTING``), softirqs are in neither; see ``holds_softirqs``.
"""

from __future__ import annotations

import gzip
import platform
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SETTING = "CONFIG_IRQ_TIME_ACCOUNTING"
_BUSY = 0.8
"""The part of a core's time that the clocks hold at least when all is in them and it is busy."""


def cpu_clock(process: int) -> int:
    """Give the id of another process's CPU clock, as ``clock_getcpuclockid`` would."""
    return (~process << 3) | 2


def cpu_seconds(process: int) -> float:
    """Give the CPU seconds that a process has used."""
    return time.clock_gettime(cpu_clock(process))


def interrupts_apart(configurations: Iterable[Path]) -> bool | None:
    """Say whether a kernel keeps the time of interrupts apart.

    ``configurations``: files that may hold what it was built with, packed or not; the first that
    can be read counts. None if there is none.
    """
    for file in configurations:
        try:
            data = file.read_bytes()
            text = gzip.decompress(data) if file.suffix == ".gz" else data
        except OSError:
            continue
        return f"{SETTING}=y".encode() in text.splitlines()
    return None


@cache
def this_kernel_keeps_apart() -> bool | None:
    """Say so of the kernel that runs."""
    release = platform.release()
    return interrupts_apart(
        (
            Path("/proc/config.gz"),
            Path(f"/boot/config-{release}"),
            Path(f"/lib/modules/{release}/config"),
        )
    )


def holds_softirqs(share: float, apart: bool | None) -> bool:
    """Say whether the clocks of processes hold what the kernel does for packets.

    ``apart``: what the kernel's configuration says. Where that is not known, ``share`` tells: the
    CPU time counted on a core that had something to do all the time, divided by that time. Half of
    what such a core does for packets are softirqs.
    """
    return share >= _BUSY if apart is None else not apart


def thread_seconds(process: int) -> dict[int, float]:
    """Give the CPU seconds of each thread of a process, by its id.

    What threads have used that are no more stands under minus the id of the process; so does
    everything where the kernel does not tell of threads (``CONFIG_SCHED_INFO``).
    """
    total = cpu_seconds(process)
    found: dict[int, float] = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            used = (thread / "schedstat").read_text().split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(thread.name)] = int(used) / 1e9
    return found | {-process: max(0.0, total - sum(found.values()))}


def softirq_thread(core: int) -> int:
    """Give the process id of a core's ``ksoftirqd``; 0 where it cannot be seen."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text() == f"ksoftirqd/{core}\n":
                return int(name.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks
    return 0
