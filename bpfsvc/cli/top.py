"""``bpfsvc top``: the busiest Services, again and again."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import FrameType

import click

from bpfsvc.cli import options
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.top import ORDERS, top_lines
from bpfsvc.inspect.services.view import View, with_rates

_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's second screen, without a cursor; and back."""
_HOME, _CLEAR_LINE, _CLEAR_SCREEN = "\x1b[H", "\x1b[K", "\x1b[2J"


@click.command()
@click.option(
    "--sort",
    "order",
    type=click.Choice(tuple(ORDERS)),
    default="rate",
    show_default=True,
    help="The order: by new connections per second, by present connections, by packets, bytes or"
    " errors (failed and refused connections) per second.",
)
@options.namespace
@click.option(
    "--interval",
    metavar="S",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two reports.",
)
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), help="End after N reports, as plain text."
)
@click.option("--once", is_flag=True, help="The same as --count 1.")
@click.option("-b", "--batch", is_flag=True, help="Plain text, also on a terminal.")
@options.pin_root
def top(
    order: str,
    namespace: str,
    interval: float,
    count: int | None,
    once: bool,
    batch: bool,
    pin_root: Path,
) -> None:
    """Show connections, packets and bytes of each service port per second, until Ctrl-C.

    The busiest service port comes first. On a terminal each report replaces the one before and has
    as many lines as the screen. Elsewhere, and with --count, --once or --batch, reports are plain
    text, one after the other. bpfsvc services --rate has the same columns.
    """
    left = 1 if once else count

    def read_view() -> View:
        with open_pinned(PinRoot(pin_root)) as pinned:
            return look(PinnedReader(pinned), (), namespace, traffic=True)

    views = _views(read_view, interval, left)
    with suppress(KeyboardInterrupt):
        if left or batch or not sys.stdout.isatty():
            _print_blocks(views, order)
        else:
            _draw(views, order)


def _views(read_view: Callable[[], View], interval: float, left: int | None) -> Iterator[View]:
    """Yield views with rates; each view is compared with the view before."""
    before = read_view()
    done = 0
    while left is None or done < left:
        time.sleep(interval)
        now = read_view()
        yield with_rates(before, now)
        before = now
        done += 1


def _print_blocks(views: Iterator[View], order: str) -> None:
    separator = ""
    for view in views:
        block = "\n".join(line.rstrip() for line in top_lines(view, order, datetime.now()))
        sys.stdout.write(f"{separator}{block}\n")
        sys.stdout.flush()
        separator = "\n"


def _draw(views: Iterator[View], order: str) -> None:
    """Draw each view on the whole screen; lines without room are left out."""
    with _own_screen():
        for view in views:
            columns, rows = shutil.get_terminal_size()
            lines = list(islice(top_lines(view, order, datetime.now()), rows))
            lines += [""] * (rows - len(lines))
            # Cleared first: after a line as wide as the screen, that would take its last letter.
            text = "\r\n".join(_CLEAR_LINE + line[:columns] for line in lines)
            sys.stdout.write(_HOME + text)
            sys.stdout.flush()


@contextmanager
def _own_screen() -> Iterator[None]:
    """Draw on the terminal's second screen; the first screen comes back however this ends."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    former = signal.signal(signal.SIGTERM, end)
    sys.stdout.write(f"{_OTHER_SCREEN}{_CLEAR_SCREEN}{_HOME}one moment ...")
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write(_FIRST_SCREEN)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, former)
