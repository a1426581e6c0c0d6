"""The working phase: objects or interfaces change, what they touch is planned, the plan is written.

The first event of a quiet time is handled at once; the events that arrive meanwhile are handled
together next.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from bpfsvc.agent.objects.event_queue import Event, EventQueue

_log = logging.getLogger("bpfsvc")

_WAIT_SECONDS = 1.0
"""At most between two looks at the clock."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
"""What the process or the node has too little of: perhaps enough, when the action's turn comes."""

Actions = Sequence[Callable[[float], object]]
"""Each is called with the time: seconds of the monotonic clock."""


class Loop:
    """Handles events, and runs actions by the clock, in the agent's thread."""

    def __init__(
        self,
        events: EventQueue,
        handle: Callable[[Sequence[Event], float], None],
        actions: Mapping[float, Actions],
        note: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """``handle(events, now)`` gets all that arrived; ``actions`` are by seconds of a period.

        ``note`` gets a text when an action fails for want of files, memory or room, which does not
        end the loop, and None when all actions succeed again.
        """
        self._events = events
        self._handle = handle
        self._actions = actions
        self._note = note
        self._short: dict[Callable[[float], object], str] = {}

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
                        self._act(action, now)

    def _act(self, action: Callable[[float], object], now: float) -> None:
        before = set(self._short.values())
        try:
            action(now)
            self._short.pop(action, None)
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            self._short[action] = f"not everything can be checked: {error.strerror}"
        texts = set(self._short.values())
        for text in texts - before:
            _log.error("%s; it is tried again", text)
        if texts != before:
            self._note("; ".join(sorted(texts)) or None)
