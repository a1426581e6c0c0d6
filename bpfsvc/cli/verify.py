"""``bpfsvc verify``: compare kube-proxy's rules with bpfsvc's maps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import click

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.privileges import require_privileges
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.cli import options
from bpfsvc.cli.maps import WRITERS
from bpfsvc.cli.terminal import print_pieces
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.tables import write_tables
from bpfsvc.migration.decisions import Decisions
from bpfsvc.migration.verify.comparison import Difference, differences, persistent
from bpfsvc.migration.verify.maps import read_maps
from bpfsvc.migration.verify.reading import LAYOUTS, Rules, read_rules
from bpfsvc.migration.verify.rules import IncompleteRules

_COLUMNS = ("service", "frontend", "clients", "what", "kube_proxy", "bpfsvc")
_SHOWN = 4
"""Texts of a list that the table shows; JSON and YAML have all."""
_BETWEEN = 0.5
_CANNOT = 2
"""The exit status if nothing could be compared."""


class _Result(NamedTuple):
    rules: Rules
    theirs: Decisions
    ours: Decisions
    differences: list[Difference]


@click.command()
@options.output("table", "json", "yaml")
@click.option(
    "--rules",
    "layout",
    type=click.Choice(LAYOUTS),
    default=None,
    help="The rules to compare, if kube-proxy left rules of more than one mode.",
)
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to compare again: a difference that lasts only a moment is a change under way.",
)
@options.pin_root
@click.pass_context
def verify(
    ctx: click.Context, output: str, layout: str | None, seconds: float, pin_root: Path
) -> None:
    """Compare kube-proxy's rules on this node with bpfsvc's maps, Service by Service.

    The command compares frontends, the treatment of clients (pods of this node, the node itself,
    others: forwarded, masqueraded, refused), the eligible endpoints, session affinity, source
    ranges and the addresses of NodePorts. Nothing is changed. The exit status is 0 without a
    difference, 1 with a difference, and 2 if there is nothing to compare.
    """
    try:
        require_privileges()
        result = _compare(pin_root, layout or "", seconds)
    except BpfsvcError as error:
        error.exit_code = _CANNOT
        raise
    for text in result.rules.unseen:
        click.echo(f"note: not compared: {text}", err=True)
    if output == "table":
        print_pieces(_text(result))
    else:
        rows: list[Row] = [tuple(row) for row in result.differences]
        print_pieces(WRITERS[output]([_compared(result), _records(rows)]), output)
    ctx.exit(1 if result.differences else 0)


def _compare(pin_root: Path, layout: str, seconds: float) -> _Result:
    """Compare again until every difference has vanished once, or the time is over.

    Rules that kube-proxy has written by half are read again, too.
    """
    ends = time.monotonic() + seconds
    rounds: list[list[Difference]] = []
    while True:
        is_last = time.monotonic() >= ends
        try:
            rules = read_rules(layout)
            theirs = rules.decisions()
        except IncompleteRules:
            if is_last:
                raise
        else:
            with open_pinned(PinRoot(pin_root)) as pinned:
                ours = read_maps(PinnedReader(pinned))
            rounds.append(differences(theirs, ours))
            lasting = persistent(rounds)
            if not lasting or is_last:
                return _Result(rules, theirs, ours, lasting)
        time.sleep(_BETWEEN)


def _text(result: _Result) -> list[str]:
    if not result.differences:
        common = result.theirs.frontends.keys() & result.ours.frontends.keys()
        services = {_name(result.ours.frontends[frontend].service) for frontend in common}
        return [
            f"kube-proxy ({result.rules.layout}) and bpfsvc do the same at"
            f" {count_text(len(common), 'frontend')} of {count_text(len(services), 'Service')}\n"
        ]
    rows: list[Row] = [
        (
            *difference[:4],
            list_text(difference.kube_proxy, _SHOWN, ","),
            list_text(difference.bpfsvc, _SHOWN, ","),
        )
        for difference in result.differences
    ]
    return [*write_tables([_records(rows)])]


def _records(rows: list[Row]) -> Records:
    return Records("differences", _COLUMNS, rows)


def _compared(result: _Result) -> Records:
    """Return the extent of the comparison, one row."""
    columns = ("rules", "kube_proxy_frontends", "bpfsvc_frontends")
    row: Row = (result.rules.layout, len(result.theirs.frontends), len(result.ours.frontends))
    return Records("compared", columns, [row])


def _name(service: str) -> str:
    """Return ``namespace/name`` of the name of a service port."""
    return service.partition(":")[0]
