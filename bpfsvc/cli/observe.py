"""``bpfsvc observe``: what becomes of connections of Services, as it happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.cli import completion, options
from bpfsvc.cli.interrupt import interrupt_after
from bpfsvc.inspect.events.agent_stream import check_name, open_stream
from bpfsvc.inspect.events.filters import FILTERS, NAMES, WORDS, Test, event_filter, help_of
from bpfsvc.inspect.events.summary import Summary
from bpfsvc.inspect.events.texts import event_lines, loss_text, wide_line
from bpfsvc.inspect.events.times import point_in_time
from bpfsvc.model.events import Event, NotAnEvent, decode_event, encode_event

F = TypeVar("F", bound=Callable[..., Any])

_SHORT = {"namespace": ("-n",)}

_NOTHING = (
    "nothing is remembered for that time: connections are remembered while somebody observes,"
    " failures always, and both only as long as the agent runs"
)


def _offers(name: str) -> completion.Complete | None:
    """Return what a shell offers for a filter."""
    live = {"namespace": completion.namespaces, "service": completion.services_or_names}
    return completion.words(*WORDS[name]) if name in WORDS else live.get(name)


def _filters(command: F) -> F:
    """Add the option of each filter, and its opposite."""
    for name in reversed(FILTERS):
        command = click.option(
            f"--not-{name}",
            multiple=True,
            metavar="X",
            shell_complete=_offers(name),
            help=f"Hide what --{name} X shows.",
        )(command)
        command = click.option(
            f"--{name}",
            *_SHORT.get(name, ()),
            multiple=True,
            metavar="X",
            shell_complete=_offers(name),
            help=f"Show events with one of these: {help_of(name)}.",
        )(command)
    return command


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option(
    "--last", metavar="N", type=click.IntRange(min=1), help="Show the last N events first."
)
@click.option("--since", metavar="TIME", help="Show events since a time: 5m (ago), 02:57, a date.")
@click.option("--until", metavar="TIME", help="Show events until a time.")
@click.option(
    "--for",
    "seconds",
    metavar="S",
    type=click.FloatRange(min=0.1, max=86400),
    help="Stop after so many seconds.",
)
@click.option(
    "--summary",
    is_flag=True,
    help="At the end, a line for each backend: connections, failures, times, and who is slow.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show events that were saved with -o json; '-' is standard input.",
)
@click.option(
    "--drops-elsewhere",
    is_flag=True,
    help="Show packets of Services that other parts of this node drop, too: netfilter, the routes,"
    " full buffers. Every dropped packet of the node costs a little more meanwhile.",
)
@_filters
@options.output("text", "wide", "json")
@options.pin_root
def observe(
    follow: bool,
    last: int | None,
    since: str | None,
    until: str | None,
    seconds: float | None,
    summary: bool,
    from_file: Path | None,
    drops_elsewhere: bool,
    output: str,
    pin_root: Path,
    **filters: tuple[str, ...],
) -> None:
    """Show what becomes of connections of Services on this node, until Ctrl-C.

    A connection is made, when it has got a backend, and answered, when the backend's first packet
    comes; a SYN is repeated if no answer has come; a connection is refused or dropped for a reason.
    Options with --last, --since or --until show what the agent remembers, and end without --follow.

    A filter may be given several times: an event needs one of the values. Each filter has an
    opposite: --not-namespace hides what --namespace shows.
    """
    now = datetime.now().astimezone()
    shows = event_filter(_chosen(filters, ""), _chosen(filters, "not_"))
    begin, end = (point_in_time(text, now) if text else None for text in (since, until))
    if begin is not None and end is not None and begin > end:
        raise UsageError("--since is later than --until", "exchange the two")
    live = "--follow" if follow else "--for" if seconds else ""
    follows = bool(live) or not (last or since or until)
    if drops_elsewhere and (from_file or not follows):
        raise UsageError(
            "--drops-elsewhere asks for what happens from now on", "add --follow, without a file"
        )
    if from_file and live:
        raise UsageError(f"{live} and --from-file exclude each other", "leave one of them out")
    with _output(output, now, summary=summary) as write:
        if from_file:
            _show(_last(_between(_of_file(from_file), begin, end), shows, last), write)
            return
        _check_names(pin_root, filters)
        # The agent knows no filters: of what it remembers, the last that are shown are chosen here.
        asked = last if follows else None
        query = _query(asked, begin, end, remembered=bool(last))
        if drops_elsewhere:
            query["drops"] = "1"
        with suppress(KeyboardInterrupt):
            interrupt_after(seconds)
            events = _or_say_nothing(_of_agent(pin_root, query, follows))
            for event in _last(events, shows, None if follows else last):
                write(event)


def _check_names(pin_root: Path, filters: Mapping[str, tuple[str, ...]]) -> None:
    for name in NAMES:
        for value in (*filters[name], *filters[f"not_{name}"]):
            check_name(pin_root, name, value)


def _chosen(filters: Mapping[str, tuple[str, ...]], start: str) -> dict[str, tuple[str, ...]]:
    return {name: filters[start + name] for name in FILTERS}


def _query(
    last: int | None, begin: float | None, end: float | None, *, remembered: bool
) -> dict[str, str]:
    """Return what the agent is asked for of the events that it remembers."""
    times = {name: repr(at) for name, at in (("since", begin), ("until", end)) if at is not None}
    return {**({"last": str(last or "all")} if remembered or times else {}), **times}


def _of_agent(pin_root: Path, query: dict[str, str], follow: bool) -> Iterator[Event]:
    """Yield events of the running agent; see :func:`open_stream` for what it is asked."""
    with open_stream(pin_root, {"follow": str(int(follow)), **query}, follow=follow) as lines:
        for line in lines:
            yield decode_event(line)


def _or_say_nothing(events: Iterable[Event]) -> Iterator[Event]:
    """Yield all events; say what the agent remembers if there are none."""
    came = False
    for event in events:
        came = True
        yield event
    if not came:
        click.echo(_NOTHING, err=True)


def _of_file(path: Path) -> Iterator[Event]:
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as saved:
            yield from _decoded(path, saved)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name a file that bpfsvc observe -o json wrote"
        ) from error


def _between(events: Iterable[Event], begin: float | None, end: float | None) -> Iterator[Event]:
    for event in events:
        if (begin is None or event.time >= begin) and (end is None or event.time <= end):
            yield event


def _decoded(path: Path, saved: IO[bytes]) -> Iterator[Event]:
    for number, line in enumerate(saved, 1):
        try:
            yield decode_event(line)
        except NotAnEvent as error:
            raise UsageError(
                f"{path}, line {number}: {error.message}",
                "save events with: bpfsvc observe -o json",
            ) from None


def _last(events: Iterable[Event], shows: Test, last: int | None) -> Iterable[Event]:
    shown = (event for event in events if event.lost or shows(event))
    return [*shown][-last:] if last else shown


def _show(events: Iterable[Event], write: Callable[[Event], None]) -> None:
    with suppress(KeyboardInterrupt):
        for event in events:
            write(event)


@contextmanager
def _output(output: str, now: datetime, *, summary: bool) -> Iterator[Callable[[Event], None]]:
    """Yield what takes events: it prints each, or at the end of the block their summary."""
    if summary and output == "json":
        raise UsageError("--summary is text", "leave out -o json, or --summary")
    write = _writer(output, now)
    if not summary:
        yield write
        return
    summed = Summary()
    yield lambda event: write(event) if event.lost else summed.add(event)
    lines = [*summed.lines()]
    for line in lines:
        click.echo(line)
    if not lines:
        click.echo("no such event was seen", err=True)


def _writer(output: str, now: datetime) -> Callable[[Event], None]:
    """Return what prints an event."""
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def paint(text: str, color: str) -> str:
        return click.style(text, fg=color) if colored and color else text

    def write(event: Event) -> None:
        if output == "json":
            sys.stdout.write(encode_event(event).decode())
        elif event.lost:
            click.echo(paint(loss_text(event), "yellow"), err=True)
        else:
            line = wide_line if output == "wide" else event_lines
            sys.stdout.write(line(event, now.tzinfo, paint) + "\n")
        sys.stdout.flush()

    return write
