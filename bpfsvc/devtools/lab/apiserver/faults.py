"""The faults that can be turned on: attributes to set while the server runs.

A change takes effect at once, also for requests and watches that are under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from bpfsvc.devtools.lab.apiserver import status
from bpfsvc.devtools.lab.apiserver.status import Refusal

WatchList = Literal["served", "recorded", "invalid", "bad request"]


@dataclass(slots=True)
class _Answer:
    """Requests with ``path`` in their path are refused, ``times`` more times."""

    code: int
    times: int
    path: str
    retry_after: int | None


Right = tuple[str, str, str]
"""A rule of a role: API group, plural and verb."""


@dataclass
class Faults:
    """The switches. By default there is no fault."""

    hang: bool = False
    """Accept connections and requests without an answer; waiting requests are answered later."""
    silent: bool = False
    """Watches stay open without data (half-open); the missed events are sent afterwards."""
    latency: float = 0.0
    """Seconds before each answer."""
    delay: float = 0.0
    """Seconds by which each event of a watch is delayed."""
    duplicates: int = 0
    """How many additional times each event of a watch is sent."""
    cut_after: int | None = None
    """Each watch breaks after so many events."""
    watch_list: WatchList = "served"
    """True if ``sendInitialEvents`` is served, or refused: as recorded, with 422 or with 400."""
    gone_at_once: bool = False
    """A watch of a forgotten revision gets HTTP 410, not HTTP 200 and an ERROR event."""
    absent: frozenset[str] = frozenset()
    """API groups (``discovery.k8s.io``) and plurals (``servicecidrs``) that are missing: 404."""
    forbidden: frozenset[str] = frozenset()
    """Plurals that no role allows: 403."""
    role: frozenset[Right] | None = None
    """What the role of all clients allows: the rest is 403; None allows everything."""
    tokens: frozenset[str] | None = None
    """The bearer tokens that are accepted (others: 401); None accepts all clients."""
    minor: str = "36"
    """The minor number of the release of Kubernetes."""
    drops_managed_fields: bool = False
    """``Accept: application/json;drop=metadata.managedFields`` is honoured (Kubernetes 1.38)."""
    bookmark_period: float = 60.0
    """Seconds between two bookmarks of a watch that allows them."""

    _answers: list[_Answer] = field(default_factory=list)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _listener: Callable[[], None] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not name.startswith("_") and getattr(self, "_listener", None) is not None:
            self.changed()

    def changed(self) -> None:
        """Wake every thread that waits for a change of faults."""
        with self._condition:
            self._condition.notify_all()
        if self._listener is not None:
            self._listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` each time a switch is set."""
        self._listener = listener

    def answer(
        self, code: int, times: int = 1, *, path: str = "", retry_after: int | None = None
    ) -> None:
        """Refuse the next ``times`` requests with ``path`` in their path, with this code."""
        with self._condition:
            self._answers.append(_Answer(code, times, path, retry_after))

    def clear_answers(self) -> None:
        """Refuse no more requests by ``answer``."""
        with self._condition:
            self._answers.clear()

    def refusal(self, path: str) -> Refusal | None:
        """Return the refusal of a request for ``path``, if any, and count it."""
        with self._condition:
            for answer in self._answers:
                if answer.path in path:
                    answer.times -= 1
                    if answer.times <= 0:
                        self._answers.remove(answer)
                    return status.of_code(answer.code, retry_after=answer.retry_after, path=path)
        return None

    def hold(self, ended: Callable[[], bool]) -> None:
        """Wait while ``hang`` is set, then ``latency`` seconds; less when ``ended``."""
        with self._condition:
            self._condition.wait_for(lambda: not self.hang or ended())
            if self.latency:
                self._condition.wait_for(ended, self.latency)
