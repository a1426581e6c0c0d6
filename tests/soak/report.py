"""A life as text: for the one who has started it, and for the document."""

from __future__ import annotations

from tests.docs.figures import measured
from tests.soak.life import Growth, Life

_SHOWN_ALWAYS = ("agent of", "MB of maps", "pins")
_LEFT_OUT = """\
Slopes are in an hour, with the interval of 95 %. Left out: maps whose number of entries never
changed; the memory of agents that are restarted."""


def table(life: Life) -> str:
    """Return all figures that changed, and what was wrong."""
    rows = [
        "| figure | first | last | slope in an hour | limit | |",
        "|---|---|---|---|---|---|",
        *map(_row, filter(_is_shown, life.growths)),
    ]
    wrong = [f"lost: {what}: {count}" for what, count in life.failures.items()]
    wrong += [f"left: {what}: {count} entries" for what, count in life.left.items()]
    wrong += [life.connections] if life.connections else []
    return "\n".join([*rows, "", *wrong])


def document(life: Life) -> str:
    """Return the figures for docs/testing.md."""
    happened = [(name, f"{count:,}") for name, count in sorted(life.events.items())]
    grown = [
        (growth.name, f"{growth.last:,.1f}; {_interval(growth)} an hour")
        for growth in life.growths
        if _is_important(growth)
    ]
    rows = [
        ("samples", f"{life.samples:,}"),
        ("exchanges of clients", f"{life.exchanges:,}"),
        *happened,
        *grown,
        ("figures that grow", str(sum(not growth.is_allowed for growth in life.growths))),
        ("entries left at the end", str(sum(life.left.values()))),
        ("connections lost or not made", str(sum(life.failures.values()))),
    ]
    command = f"make soak HOURS={life.seconds / 3600:.2g} SEED={life.seed}"
    return f"{measured(command, rows)}\n{_LEFT_OUT}"


def _is_important(growth: Growth) -> bool:
    return growth.name.startswith(_SHOWN_ALWAYS[0]) or growth.name.endswith(_SHOWN_ALWAYS[1:])


def _is_shown(growth: Growth) -> bool:
    changed = growth.first != growth.last or growth.slope.hourly != 0
    return changed or _is_important(growth)


def _interval(growth: Growth) -> str:
    slope = growth.slope
    return f"{slope.hourly:+,.2f} ({slope.low:+,.2f} to {slope.high:+,.2f})"


def _row(growth: Growth) -> str:
    allowed = growth.limit.hourly + growth.limit.once / growth.hours
    verdict = "" if growth.is_allowed else "GROWS"
    return (
        f"| {growth.name} | {growth.first:,.2f} | {growth.last:,.2f} "
        f"| {_interval(growth)} | {allowed:,.1f} | {verdict} |"
    )
