"""The agent's events for all browsers: one reader of the agent's stream, and a bounded memory.

A browser asks again and again for what is new. The agent is asked for events only while a browser
is, because connections cost more while somebody observes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.inspect.events.agent_stream import NoStream, open_stream
from bpfsvc.inspect.events.filters import Test
from bpfsvc.inspect.events.texts import loss_text
from bpfsvc.model.events import Event, decode_event, reason_text

REMEMBERED = 2000
MOST_AT_ONCE = 200

_UNWANTED_SECONDS = 15.0
"""Without a question for so long, the agent is asked for events no more."""

_BEGIN = {"follow": "1", "last": "100"}

Stream = Callable[[], AbstractContextManager[Iterator[bytes]]]


class EventFeed:
    """Events by number, the first has the number 1. Any thread may ask."""

    def __init__(self, stream: Stream, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=REMEMBERED)
        self._last = 0
        self._asked_at = 0.0
        self._reading = False
        self._error = ""

    @classmethod
    def of_agent(cls, pin_root: Path) -> EventFeed:
        """Return the events of the agent with its pins at ``pin_root``."""
        return cls(lambda: open_stream(pin_root, _BEGIN, follow=True))

    def after(self, number: int, shows: Test) -> dict[str, Any]:
        """Return the events after a number that ``shows`` accepts: the newest of them.

        ``missed``: how many were forgotten before anybody asked for them, or left out now.
        """
        with self._lock:
            self._asked_at = self._clock()
            if not self._reading:
                self._reading = True
                threading.Thread(target=self._read, name="events", daemon=True).start()
            begin = number if 0 <= number <= self._last else 0
            oldest = self._last - len(self._events)
            fresh = [*islice(self._events, max(0, begin - oldest), None)]
            last, error = self._last, self._error
        shown = [event for event in fresh if event.lost or shows(event)]
        forgotten = max(0, oldest - begin) if begin else 0
        return {
            "last": last,
            "missed": forgotten + max(0, len(shown) - MOST_AT_ONCE),
            "error": error,
            "events": [_object(event) for event in shown[-MOST_AT_ONCE:]],
        }

    def _read(self) -> None:
        error = ""
        try:
            with self._stream() as lines:
                for line in lines:
                    event = decode_event(line)
                    with self._lock:
                        self._events.append(event)
                        self._last += 1
                        self._error = ""
                        if self._clock() > self._asked_at + _UNWANTED_SECONDS:
                            return
        except NoStream as failure:
            error = failure.message
        except (BpfsvcError, OSError) as failure:
            error = f"the agent's events cannot be read: {failure}"
        finally:
            with self._lock:
                self._reading = False
                self._error = error


def _object(event: Event) -> dict[str, Any]:
    if event.lost:
        return {"time": event.time, "kind": "lost", "text": loss_text(event)}
    return {
        "time": event.time,
        "kind": event.kind,
        "verdict": event.verdict,
        "protocol": event.protocol,
        "service": event.service.text,
        "client": event.client.text,
        "frontend": event.frontend.text if event.frontend.address else "",
        "backend": event.backend.text if event.backend.address else "",
        "reason": reason_text(event.reason),
        "path": event.path,
        "chosen_by": event.chosen_by,
        "masquerade": event.masquerade,
        "took_ms": event.took_ms,
        "sample": event.sample,
    }
