"""``bpfsvc history``: what has changed in Services, and which of their connections failed."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.base.texts import change_text, count_text, list_text
from bpfsvc.cli import completion, options
from bpfsvc.explain.agent_answers import AgentAnswers, NoAnswer
from bpfsvc.inspect.events.times import point_in_time
from bpfsvc.inspect.flapping import Flapping, flapping
from bpfsvc.model.answers import TOGETHER, ChangeRecord, encode
from bpfsvc.model.failures import Failure, added

_NAME = re.compile(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)")
_SHOWN = 8
_WIDTH = 100


@click.command()
@click.argument(
    "service",
    metavar="[NAMESPACE/SERVICE]",
    required=False,
    shell_complete=completion.services,
)
@options.namespace
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Show the last N changes.")
@click.option(
    "--since", metavar="TIME", help="Show what was since a time: 5m (ago), 02:57, a date."
)
@click.option("--until", metavar="TIME", help="Show what was until a time.")
@options.output("text", "json")
@options.pin_root
def history(
    service: str | None,
    namespace: str,
    last: int | None,
    since: str | None,
    until: str | None,
    output: str,
    pin_root: Path,
) -> None:
    """Show what has changed in Services on this node, and which of their connections failed.

    A change has the time at which the kernel had it, and how long after the event of the API server
    that was. Connections that failed are counted by Service, reason and backend. The agent
    remembers both, also over its restarts, in memory of the size --history-megabytes. bpfsvc
    observe --since shows the last failures one by one.
    """
    now = datetime.now().astimezone()
    begin, end = (point_in_time(text, now) if text else None for text in (since, until))
    if begin is not None and end is not None and begin > end:
        raise UsageError("--since is later than --until", "exchange the two")
    namespace_and_name = _parts(service)

    def is_within(first: float, last: float) -> bool:
        return (begin is None or last >= begin) and (end is None or first <= end)

    changes = [
        record
        for record in AgentAnswers(pin_root).history(*namespace_and_name)
        if is_within(record.at, record.at)
        and (not namespace or any(name.startswith(f"{namespace}/") for name in record.services))
    ]
    failed = added(
        record
        for record in _failed(pin_root, *namespace_and_name)
        if is_within(record.first, record.last)
        and (not namespace or record.service.startswith(f"{namespace}/"))
    )
    flaps = flapping(changes)
    changes = changes[-last:] if last else changes
    if output == "json":
        remembered = {"changes": changes, "failures": failed, "flapping": flaps}
        sys.stdout.write(encode(remembered).decode() + "\n")
        return
    if not changes and not failed:
        click.echo("nothing is remembered of that", err=True)
    for line in _texts(changes, failed, flaps, now, service or ""):
        click.echo(line)


def _parts(service: str | None) -> tuple[str, str]:
    if service is None:
        return "", ""
    match = _NAME.fullmatch(service)
    if not match:
        raise UsageError(f"{service!r} is not the name of a Service", "write NAMESPACE/SERVICE")
    return match[1], match[2]


def _failed(pin_root: Path, namespace: str, name: str) -> list[Failure]:
    """Return the records of failures; say why, if the agent does not tell."""
    try:
        return AgentAnswers(pin_root).failed(namespace, name)
    except NoAnswer as error:
        click.echo(f"failed connections are not known: {error.message}", err=True)
        return []


def _texts(
    changes: Iterable[ChangeRecord],
    failed: Iterable[Failure],
    flaps: Iterable[Flapping],
    now: datetime,
    asked: str,
) -> Iterator[str]:
    """Yield lines, folded to the terminal: changes, failures and flapping by their times."""
    lines = [(change.at, _clock(change.at, now), _change(change, asked)) for change in changes]
    for failure in failed:
        times = count_text(failure.count, "time")
        since = "" if failure.first == failure.last else f" since {_clock(failure.first, now)}"
        clients = f"; clients: {', '.join(failure.clients)}" if failure.clients else ""
        text = f"{failure.text()}; {times}{since}{clients}"
        lines.append((failure.last, _clock(failure.last, now), text))
    for flap in flaps:
        text = f"{flap.text()}; since {_clock(flap.first, now)}"
        lines.append((flap.last, _clock(flap.last, now), text))
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
    for _, clock, text in sorted(lines):
        yield from textwrap.wrap(
            f"{clock}  {text}",
            width,
            subsequent_indent=" " * (len(clock) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _clock(seconds: float, now: datetime) -> str:
    """Return a time of day, with the date if it is another day than ``now``."""
    at = datetime.fromtimestamp(seconds).astimezone()
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _change(record: ChangeRecord, asked: str) -> str:
    wait = "" if record.waited_ms is None else f" (after {record.waited_ms:g} ms)"
    if record.what == TOGETHER:
        others = len(record.services) - 1
        if asked:
            return f"{asked}: written together with {others} others{wait}"
        names = list_text(record.services, _SHOWN)
        return f"{others + 1} Services written together: {names}{wait}"
    endpoints, frontends = record.endpoints, record.frontends
    more = endpoints.more + frontends.more
    text = change_text(
        record.what,
        (endpoints.added, endpoints.removed),
        (frontends.added, frontends.removed),
        _SHOWN,
    )
    return f"{record.services[0]}: {text}" + (f"; {more} more names" if more else "") + wait
