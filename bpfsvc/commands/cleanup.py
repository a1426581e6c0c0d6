"""``bpfsvc cleanup``: take everything away that an agent put into this network namespace."""

from __future__ import annotations

from pathlib import Path

import click

from bpfsvc.cleanup import cleanup as remove_everything
from bpfsvc.config import DEFAULT_PIN_ROOT
from bpfsvc.privileges import require_privileges


@click.command()
@click.option(
    "--pin-root",
    type=click.Path(path_type=Path),
    default=DEFAULT_PIN_ROOT,
    show_default=True,
    help="Directory in a bpf file system that belongs to the agent.",
)
def cleanup(pin_root: Path) -> None:
    """Remove programs, maps, pins, qdiscs and sysctls of an agent that no longer runs."""
    require_privileges()
    for line in remove_everything(pin_root):
        click.echo(line)
