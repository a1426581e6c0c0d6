"""A finding: one sentence about one subject, how serious it is, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from bpfsvc.base.texts import list_text

_SHOWN = 4


class Level(Enum):
    """How serious a finding is. Only ``REFUSE`` makes a node unfit."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    REFUSE = "refuse"

    def __str__(self) -> str:
        return self.value


class Finding(NamedTuple):
    """``text`` is one line; ``hint`` is the next step, in the imperative, or empty."""

    level: Level
    subject: str
    text: str
    hint: str = ""


def some(names: Sequence[str], separator: str = ", ") -> str:
    """Return a list as text, cut short if it is long."""
    return list_text(names, _SHOWN, separator)


ok = partial(Finding, Level.OK)
"""Return a finding: this is as it should be."""

note = partial(Finding, Level.NOTE)
"""Return a finding: this is good to know."""

warning = partial(Finding, Level.WARNING)
"""Return a finding: some traffic may fail because of this."""

refuse = partial(Finding, Level.REFUSE)
"""Return a finding: because of this, bpfsvc cannot or must not run here."""
