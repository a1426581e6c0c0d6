"""The working phase: objects or interfaces change, what they touch is planned, the plan is written.

The first event of a quiet time is handled at once; the events that arrive meanwhile are handled
together next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from bpfsvc.agent.objects.event_queue import Event, EventQueue

_WAIT_SECONDS = 1.0
"""At most between two looks at the clock."""

Actions = Sequence[Callable[[float], object]]
"""Each is called with the time: seconds of the monotonic clock."""


class Loop:
    """Handles events, and runs actions by the clock, in the agent's thread."""

    def __init__(
        self,
        events: EventQueue,
        handle: Callable[[Sequence[Event], float], None],
        actions: Mapping[float, Actions],
    ) -> None:
        """``handle(events, now)`` gets all that arrived; ``actions`` are by seconds of a period."""
        self._events = events
        self._handle = handle
        self._actions = actions

    def run(self, stop: threading.Event) -> None:
        """Return when ``stop`` is set; raise ``Stopped`` at the end of events."""
        began = time.monotonic()
        due = {seconds: began + seconds for seconds in self._actions}
        while not stop.is_set():
            if events := self._events.take_events(_WAIT_SECONDS):
                self._handle(events, time.monotonic())
            for seconds, actions in self._actions.items():
                now = time.monotonic()
                if now >= due[seconds]:
                    due[seconds] = now + seconds
                    for action in actions:
                        action(now)
