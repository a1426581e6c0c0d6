"""The queue hands over all waiting events at once, in order, to the end."""

from __future__ import annotations

import pytest

from bpfsvc.agent.objects.event_queue import EventQueue, Stopped
from bpfsvc.kube.source import Batch

ONE, TWO = (Batch((), (), complete=flag, problems=()) for flag in (False, True))


def test_all_waiting_events_are_taken_in_order() -> None:
    events = EventQueue()
    events.put(ONE)
    events.put(TWO)
    assert events.take_events(1) == [ONE, TWO]


def test_without_events_nothing_is_taken() -> None:
    assert EventQueue().take_event(0) is None
    assert EventQueue().take_events(0) == []


def test_the_end_comes_after_all_earlier_events() -> None:
    events = EventQueue()
    events.put(ONE)
    events.put(None)
    assert events.take_event(1) == ONE
    with pytest.raises(Stopped):
        events.take_events(1)


def test_an_error_of_another_thread_is_raised_here() -> None:
    """The agent must not continue with an old state."""
    events = EventQueue()
    events.put(ONE)
    events.put(ValueError("not expected"))
    with pytest.raises(ValueError, match="not expected"):
        events.take_events(1)
