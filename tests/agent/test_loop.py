"""What the loop does with events, and by the clock."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from bpfsvc.agent import loop
from bpfsvc.agent.loop import Loop
from bpfsvc.agent.objects.event_queue import Event, EventQueue, Stopped
from bpfsvc.kube.source import Batch

BATCH = Batch((), (), True, ())


def test_events_that_came_together_are_handled_together() -> None:
    events, handled = EventQueue(), list[list[Event]]()
    events.put(BATCH)
    events.put(BATCH)
    stop = threading.Event()

    def handle(taken: Sequence[Event], _now: float) -> None:
        handled.append(list(taken))
        stop.set()

    Loop(events, handle, {}).run(stop)
    assert handled == [[BATCH, BATCH]]


def test_a_loop_that_is_stopped_before_it_begins_handles_nothing() -> None:
    events, handle = EventQueue(), Mock()
    events.put(BATCH)
    stop = threading.Event()
    stop.set()
    Loop(events, handle, {}).run(stop)
    handle.assert_not_called()


def test_the_end_of_events_ends_the_loop() -> None:
    events = EventQueue()
    events.put(None)
    with pytest.raises(Stopped):
        Loop(events, Mock(), {}).run(threading.Event())


def test_actions_run_at_their_own_pace_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stop, events = [100.0], threading.Event(), EventQueue()
    often, rarely = list[float](), list[float]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "_WAIT_SECONDS", 0)

    def act(at: float) -> None:
        often.append(at)
        if at >= 130:
            stop.set()

    def handle(_events: Sequence[Event], _now: float) -> None:
        now[0] += 0.5
        events.put(BATCH)

    events.put(BATCH)
    Loop(events, handle, {30.0: (rarely.append,), 1.0: (act,)}).run(stop)
    assert often == [100.0 + second for second in range(1, 31)]
    assert rarely == [130.0]


def test_an_action_that_finds_no_file_descriptor_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel's programs go on without the agent, but nobody would change them."""
    now, stop, notes = [0.0], threading.Event(), list[str | None]()
    outcomes = [OSError(errno.EMFILE, "Too many open files")] * 2 + [None]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "_WAIT_SECONDS", 0)

    def fail(_now: float) -> None:
        if not outcomes:
            stop.set()
        elif error := outcomes.pop(0):
            raise error

    def pass_time(_now: float) -> None:
        now[0] += 1

    actions = {1.0: [fail], 0.0: [pass_time]}
    Loop(EventQueue(), Mock(), actions, notes.append).run(stop)
    assert notes == ["not everything can be checked: Too many open files", None]
    assert caplog.text.count("Too many open files") == 1


def test_another_error_of_an_action_ends_the_loop() -> None:
    action = Mock(side_effect=OSError(errno.EPERM, "Operation not permitted"))
    with pytest.raises(PermissionError):
        Loop(EventQueue(), Mock(), {0.0: [action]}).run(threading.Event())
