"""The end of a command that would go on until Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading


def interrupt_after(seconds: float | None) -> None:
    """Have the command end as by Ctrl-C; None: do not."""
    if seconds is not None:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def interrupt_with_stdin() -> None:
    """Have the command end as by Ctrl-C as soon as standard input ends.

    A command that ``kubectl exec`` has started goes on when kubectl ends; only its input ends.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
