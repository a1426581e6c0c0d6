"""``bpfsvc page``: the page of this node, for a browser."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from bpfsvc.base.address import with_port
from bpfsvc.base.privileges import require_privileges
from bpfsvc.cli import options
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_UI
from bpfsvc.page.answers import NodeAnswers
from bpfsvc.page.server import HandedPort, PageServer

_IDLE_SECONDS = 300.0
_NICE = 10
_OOM_SCORE = "1000"


@click.command()
@click.option(
    "--ui-bind-address",
    "address",
    type=options.AddressAndPort(),
    default=DEFAULT_UI,
    show_default=True,
    help="Where the page is served.",
)
@click.option(
    "--listener",
    type=click.IntRange(min=0),
    hidden=True,
    help="File descriptor of the agent's listening socket; the page ends with standard input.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0.1),
    default=_IDLE_SECONDS,
    hidden=True,
    help="With --listener: without a request for so long, the page ends.",
)
@options.healthz
@options.pin_root
def page(
    address: tuple[str, int] | None,
    listener: int | None,
    idle_seconds: float,
    healthz: tuple[str, int] | None,
    pin_root: Path,
) -> None:
    """Serve the page of this node until Ctrl-C, for a browser: Services, events and history.

    An agent with --ui-bind-address serves the same page by itself, so this is for a node whose
    agent does not, or for another port.
    """
    require_privileges()
    answers = NodeAnswers(pin_root, healthz).by_path()
    if listener is not None:
        _give_way()
        handed = HandedPort(listener)
        server = PageServer(handed.address, answers, _log, handed)
        server.serve(sys.stdin.fileno(), idle_seconds)
        return
    if address is None:
        raise click.UsageError("--ui-bind-address is empty: there is nothing to serve")
    server = PageServer(address, answers, _log)
    click.echo(f"serving http://{with_port(*address)}/ until Ctrl-C", err=True)
    with suppress(KeyboardInterrupt):
        server.serve(None, 1.0)


def _give_way() -> None:
    """Let the agent and the node's pods go first, for processors and for memory."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _log(text: str) -> None:
    click.echo(text, err=True)
