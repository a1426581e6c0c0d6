"""Events as lines for people."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo

from bpfsvc.model.events import Event, EventEnd, reason_text

WIDTH = 100

_INDENT = " " * 13
"""As wide as the time."""

_COARSE_MS = 10
"""The longest tick of a kernel's clock."""

_PATH_TEXTS = {"tc": "", "fast_path": "fast path", "socket": "socket"}

COLORS = {
    "made": "",
    "answered": "green",
    "repeated": "yellow",
    "refused": "red",
    "dropped": "red",
    "ended": "",
    "dropped_elsewhere": "red",
}

_WITH_FRONTEND = ("refused", "dropped", "dropped_elsewhere")

Paint = Callable[[str, str], str]
"""Returns a text in a color, or as it is."""


def event_lines(event: Event, zone: tzinfo | None, paint: Paint) -> str:
    """Return the text of an event, folded to :data:`WIDTH` columns; without a line end."""
    text = f"{_clock(event, zone)} {_sentence(event)}"
    folded = textwrap.fill(
        text, WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )
    return folded.replace(event.kind, paint(event.kind, COLORS[event.kind]), 1)


def wide_line(event: Event, zone: tzinfo | None, paint: Paint) -> str:
    """Return the text of an event with all that is known, in one line; without a line end."""
    at = datetime.fromtimestamp(event.time, zone).isoformat(timespec="microseconds")
    ends = " -> ".join(
        (
            event.client.text,
            f"{event.service.text} ({event.frontend.text})",
            *((event.backend.text,) if event.backend.address else ()),
        )
    )
    details = "; ".join((event.verdict, f"by {event.path}", *_details(event, wide=True)))
    kind = paint(event.kind, COLORS[event.kind])
    return f"{at} {event.node} {kind} {event.protocol} {ends}; {details}"


def loss_text(event: Event) -> str:
    """Return the text that events are missing."""
    whose = {
        "kernel": "the agent was too slow for the kernel",
        "reader": "this command was too slow for the agent",
    }.get(event.lost_by, event.lost_by)
    return f"lost {event.lost} event{'s' if event.lost != 1 else ''}: {whose}"


def _clock(event: Event, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(event.time, zone).time().isoformat(timespec="milliseconds")


def _sentence(event: Event) -> str:
    ends = f"{_end(event.client)} -> {event.service.text}"
    if event.backend.address:
        ends += f" -> {_end(event.backend)}"
    if event.frontend.address and (not event.service.name or event.kind in _WITH_FRONTEND):
        ends += f" ({event.frontend.place})"
    return "; ".join((f"{event.kind} {event.protocol} {ends}", *_details(event)))


def _details(event: Event, *, wide: bool = False) -> Iterator[str]:
    if event.took_ms is not None:
        yield f"after {_duration(event)}"
    if event.reason:
        yield reason_text(event.reason)
    if not wide and (path := _PATH_TEXTS.get(event.path, event.path)):
        yield path
    if event.chosen_by:
        yield f"by {event.chosen_by}"
    if event.masquerade:
        yield "masqueraded"
    if event.sample > 1:
        yield f"one of {event.sample}"


def _duration(event: Event) -> str:
    milliseconds = event.took_ms or 0.0
    if milliseconds >= _COARSE_MS:
        return f"{milliseconds:.0f} ms"
    # The last packet of a connection is dated by a coarse clock, but the end of a socket is not.
    is_coarse = event.kind == "ended" and event.path != "socket"
    return f"less than {_COARSE_MS} ms" if is_coarse else f"{milliseconds:.3f} ms"


def _end(end: EventEnd) -> str:
    """Return the name of the pod or node that an end is, else its address."""
    name = end.pod or end.node
    if not name:
        return end.place
    return f"{name}:{end.port}" if end.port else name
