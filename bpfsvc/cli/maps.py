"""``bpfsvc maps``: the content of the kernel's maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from bpfsvc.cli import completion, options
from bpfsvc.cli.terminal import print_pieces
from bpfsvc.cli.watch import print_changes
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.documents import write_json, write_yaml
from bpfsvc.inspect.maps.dump import choose
from bpfsvc.inspect.maps.dump import dump as read_records
from bpfsvc.inspect.maps.of_service import OneService
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.records import Records
from bpfsvc.inspect.tables import write_tables

WRITERS: dict[str, Callable[[Iterable[Records]], Iterator[str]]] = {
    "table": write_tables,
    "json": write_json,
    "yaml": write_yaml,
}


@click.group(no_args_is_help=False)
def maps() -> None:
    """Show the kernel's maps."""


@maps.command()
@click.argument("names", nargs=-1, metavar="[MAP]...", shell_complete=completion.maps)
@click.option(
    "--service",
    metavar="NAMESPACE/NAME[:PORT]",
    shell_complete=completion.services,
    help="Only the rows of this Service, or of one of its ports, in all maps that have such rows.",
)
@click.option("--watch", is_flag=True, help="Print changes from now on, until Ctrl-C.")
@options.output(*WRITERS)
@options.pin_root
def dump(
    names: tuple[str, ...], service: str | None, watch: bool, output: str, pin_root: Path
) -> None:
    """Print maps with names instead of numbers; all maps if none is given.

    The pinned maps are read, so no agent has to run. The maps are frontends, services, backends,
    endpoints, connections, node_addresses, interfaces, masquerade_choices, uplinks, settings,
    counters; and sizes, which shows how full the others are.

    With --watch a line is printed for each row that is added, changed or removed, with -o json a
    JSON object for each. The maps are compared every second; a row that comes and goes in between
    is not seen.
    """
    wanted = OneService(service) if service else None
    read = wanted.dump if wanted else read_records

    def read_all() -> Iterator[Records]:
        with open_pinned(PinRoot(pin_root)) as pinned:
            yield from read(PinnedReader(pinned), names)

    if watch:
        print_changes(read_all, output)
        return
    with open_pinned(PinRoot(pin_root)) as pinned:
        choose(pinned.layout, names)
        reader = PinnedReader(pinned)
        if wanted:
            wanted.require(reader)
        print_pieces(WRITERS[output](read(reader, names)), output)
