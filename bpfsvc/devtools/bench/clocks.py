"""CPU time of other processes, to the nanosecond.

A process's clock includes the kernel's work for it, and packets on their path through both
network stacks: a softirq is charged to the process it interrupts. The kernel leaves the rest to
``ksoftirqd`` of the core; its clock is read too. Where a kernel keeps the time of interrupts
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
"""The part of a busy core's time that the clocks hold at least if softirqs are in them."""


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    # The id of another process's CPU clock, as clock_getcpuclockid makes it.
    return time.clock_gettime((~process << 3) | 2)


def interrupts_apart(configurations: Iterable[Path]) -> bool | None:
    """Return True if a kernel keeps the time of interrupts apart, None if that is not known.

    ``configurations``: files that may hold the build configuration, packed or not; the first file
    that can be read counts.
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
    """Return the same for the kernel that runs."""
    release = platform.release()
    files = ("/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config")
    return interrupts_apart(map(Path, files))


def holds_softirqs(share: float, apart: bool | None) -> bool:
    """True if the clocks of processes include the kernel's work for packets.

    ``apart``: from the kernel's configuration. If it is None, ``share`` decides: the counted CPU
    time of a core that was busy all the time, divided by that time. Half of the work of such a core
    for packets is softirqs.
    """
    return share >= _BUSY if apart is None else not apart


def thread_seconds(process: int) -> dict[int, float]:
    """Return the CPU seconds of each thread of a process, by its id.

    The time of threads that have ended is under minus the id of the process; so is all time where
    the kernel does not count by thread (without ``CONFIG_SCHED_INFO``).
    """
    total = cpu_seconds(process)
    used_by: dict[int, float] = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            used = (thread / "schedstat").read_text().split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        used_by[int(thread.name)] = int(used) / 1e9
    return used_by | {-process: max(0.0, total - sum(used_by.values()))}


def softirq_thread(core: int) -> int:
    """Return the process id of a core's ``ksoftirqd``; 0 where it cannot be seen."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text() == f"ksoftirqd/{core}\n":
                return int(name.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return 0
