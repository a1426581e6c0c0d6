"""What happens reaches the one who acts: in order, all at once, to the end."""

from __future__ import annotations

import pytest

from bpfsvc.inbox import Inbox, Stopped
from bpfsvc.sources import Batch

ONE, TWO = (Batch((), (), complete=flag, problems=()) for flag in (False, True))


def test_all_that_is_there_is_taken_in_order() -> None:
    inbox = Inbox()
    inbox.put(ONE)
    inbox.put(TWO)
    assert inbox.drain(1) == [ONE, TWO]


def test_where_nothing_happens_nothing_is_taken() -> None:
    assert Inbox().take(0) is None
    assert Inbox().drain(0) == []


def test_the_end_is_told_behind_what_came_before() -> None:
    inbox = Inbox()
    inbox.put(ONE)
    inbox.put(None)
    assert inbox.take(1) == ONE
    with pytest.raises(Stopped):
        inbox.drain(1)


def test_what_failed_elsewhere_fails_here() -> None:
    """The agent must not go on with an old picture."""
    inbox = Inbox()
    inbox.put(ONE)
    inbox.put(ValueError("nobody expected this"))
    with pytest.raises(ValueError, match="nobody expected this"):
        inbox.drain(1)
