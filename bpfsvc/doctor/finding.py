"""What a person is told about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_SHOWN = 4


class Level(Enum):
    """How grave it is. Only ``REFUSE`` makes a node unfit."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    REFUSE = "refuse"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """``text`` is one line; ``hint`` says the way out, in the imperative."""

    level: Level
    subject: str
    text: str
    hint: str = ""


def some(names: list[str], between: str = ", ") -> str:
    """Give a list in words, cut short if it is long."""
    more = len(names) - _SHOWN
    return between.join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def ok(subject: str, text: str) -> Finding:
    """Say that something is as it should be."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str, hint: str = "") -> Finding:
    """Say what is good to know."""
    return Finding(Level.NOTE, subject, text, hint)


def warning(subject: str, text: str, hint: str = "") -> Finding:
    """Say what some traffic may suffer from."""
    return Finding(Level.WARNING, subject, text, hint)


def refuse(subject: str, text: str, hint: str = "") -> Finding:
    """Say why bpfsvc must not, or cannot, run here."""
    return Finding(Level.REFUSE, subject, text, hint)
