"""``bpfsvc maps``: what is in the kernel, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from bpfsvc.commands.parameters import pin_root as pin_root_option
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.inspection.documents import write_json, write_yaml
from bpfsvc.inspection.dump import choose
from bpfsvc.inspection.dump import dump as read_records
from bpfsvc.inspection.reader import PinnedReader, open_pinned
from bpfsvc.inspection.records import Records
from bpfsvc.inspection.tables import write_tables

WRITERS: dict[str, Callable[[Iterable[Records]], Iterator[str]]] = {
    "table": write_tables,
    "json": write_json,
    "yaml": write_yaml,
}


@click.group(no_args_is_help=False)
def maps() -> None:
    """Look into the kernel's maps."""


@maps.command()
@click.argument("names", nargs=-1, metavar="[MAP]...")
@click.option(
    "-o",
    "--output",
    type=click.Choice([*WRITERS]),
    default="table",
    show_default=True,
    help="A table for people, or one document for programs.",
)
@pin_root_option
def dump(names: tuple[str, ...], output: str, pin_root: Path) -> None:
    """Print maps with names instead of numbers; all of them if none is named.

    Only the pinned maps are read: no agent need run. The maps are frontends, services, backends,
    endpoints, connections, node_addresses, interfaces, uplinks, settings, counters, and sizes,
    which says how full the others are.
    """
    with open_pinned(PinRoot(pin_root)) as pinned:
        chosen = choose(pinned.layout, names)
        sys.stdout.writelines(WRITERS[output](read_records(PinnedReader(pinned), chosen)))
        sys.stdout.flush()
