"""Points in time as people write them: ``5m`` ago, ``02:57``, or a whole date."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from bpfsvc.base.errors import UsageError

_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def point_in_time(text: str, now: datetime) -> float:
    """Return the seconds since 1970 of a text; raise :class:`UsageError` if it is no time.

    A time of day is the last one before ``now``, which has a time zone: that of texts without one.
    """
    if ago := _AGO.fullmatch(text):
        return now.timestamp() - float(ago[1]) * _SECONDS[ago[2]]
    try:
        if clock := _CLOCK.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at <= now else at - timedelta(days=1)).timestamp()
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time", "write 5m (ago), 02:57, or 2026-01-31T02:57:00Z"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=now.tzinfo)).timestamp()
