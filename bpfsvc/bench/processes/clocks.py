"""CPU time of others, to the nanosecond.

A process's clock holds what the kernel did for it, packets on their way through both network stacks
among that: a softirq is charged to whom it interrupts. What is too much for that is left to
``ksoftirqd`` of the core, whose clock is read too. (Where a kernel keeps time of interrupts apart,
``CONFIG_IRQ_TIME_ACCOUNTING``, softirqs are in neither.)
"""

from __future__ import annotations

import time
from pathlib import Path


def cpu_clock(process: int) -> int:
    """Give the id of another process's CPU clock, as ``clock_getcpuclockid`` would."""
    return (~process << 3) | 2


def cpu_seconds(process: int) -> float:
    """Give the CPU seconds that a process has used."""
    return time.clock_gettime(cpu_clock(process))


def softirq_thread(core: int) -> int:
    """Give the process id of a core's ``ksoftirqd``; 0 where it cannot be seen."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text() == f"ksoftirqd/{core}\n":
                return int(name.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks
    return 0
