"""A look now and then at what is not told: in a thread of its own, as it may take its time.

A node with kube-proxy's rules for thousands of Services needs seconds to print them, and no change
of an endpoint shall wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Lookout:
    """Asks ``look()`` every ``seconds`` until it sees something: a text, "" for nothing."""

    def __init__(self, look: Callable[[], str], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._seen = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    @property
    def seen(self) -> str:
        """What was seen, for good; "" so far."""
        return self._seen

    def start(self) -> None:
        """Begin; the first look is due after ``seconds``."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; one that has begun is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._seen and not self._stop.wait(self._seconds):
            self._seen = self._look()
