"""Units of time, and times as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000


def unix_seconds(text: object) -> float:
    """Return a time of RFC 3339, as ``2026-11-21T10:39:20.5Z``, in Unix seconds; 0 for others."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
