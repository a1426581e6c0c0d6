"""``--for S``: the end of a command that would go on until Ctrl-C."""

from __future__ import annotations

import signal


def interrupt_after(seconds: float | None) -> None:
    """Have the command end as by Ctrl-C; None: do not."""
    if seconds is not None:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)
