"""``bpfsvc history``: what has changed in Services, and when."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.base.texts import change_text, list_text
from bpfsvc.cli import options
from bpfsvc.explain.agent_answers import AgentAnswers
from bpfsvc.inspect.events.times import point_in_time
from bpfsvc.model.answers import TOGETHER, ChangeRecord, encode

_NAME = re.compile(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)")
_SHOWN = 8
_WIDTH = 100


@click.command()
@click.argument("service", metavar="[NAMESPACE/SERVICE]", required=False)
@options.namespace
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Show the last N changes.")
@click.option("--since", metavar="TIME", help="Show changes since a time: 5m (ago), 02:57, a date.")
@click.option("--until", metavar="TIME", help="Show changes until a time.")
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
    """Show what has changed in Services on this node: endpoints and frontends that came and went.

    Each line has the time at which the kernel had the change, and how long after the event of the
    API server that was. The agent remembers the last changes, also over its restarts, in memory of
    the size --history-megabytes.
    """
    now = datetime.now().astimezone()
    begin, end = (point_in_time(text, now) if text else None for text in (since, until))
    if begin is not None and end is not None and begin > end:
        raise UsageError("--since is later than --until", "exchange the two")
    records = [
        record
        for record in AgentAnswers(pin_root).history(*_parts(service))
        if (begin is None or record.at >= begin)
        and (end is None or record.at <= end)
        and (not namespace or any(name.startswith(f"{namespace}/") for name in record.services))
    ]
    records = records[-last:] if last else records
    if output == "json":
        sys.stdout.write(encode(records).decode() + "\n")
        return
    if not records:
        click.echo("no change is remembered for that", err=True)
    for record in records:
        for line in _lines(record, now, service or ""):
            click.echo(line)


def _parts(service: str | None) -> tuple[str, str]:
    if service is None:
        return "", ""
    match = _NAME.fullmatch(service)
    if not match:
        raise UsageError(f"{service!r} is not the name of a Service", "write NAMESPACE/SERVICE")
    return match[1], match[2]


def _lines(record: ChangeRecord, now: datetime, asked: str) -> Iterator[str]:
    """Yield the lines of a record, folded to the terminal, with the date if it is another day."""
    at = datetime.fromtimestamp(record.at).astimezone()
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    head = f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
    wait = "" if record.waited_ms is None else f" (after {record.waited_ms:g} ms)"
    yield from textwrap.wrap(
        f"{head}  {_text(record, asked)}{wait}",
        width,
        subsequent_indent=" " * (len(head) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text(record: ChangeRecord, asked: str) -> str:
    if record.what == TOGETHER:
        others = len(record.services) - 1
        if asked:
            return f"{asked}: written together with {others} others"
        return f"{others + 1} Services written together: {list_text(record.services, _SHOWN)}"
    endpoints, frontends = record.endpoints, record.frontends
    more = endpoints.more + frontends.more
    text = change_text(
        record.what,
        (endpoints.added, endpoints.removed),
        (frontends.added, frontends.removed),
        _SHOWN,
    )
    return f"{record.services[0]}: {text}" + (f"; {more} more names" if more else "")
