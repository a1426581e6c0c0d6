"""``bpfsvc cleanup``: take everything away that an agent put into this network namespace."""

from __future__ import annotations

from pathlib import Path

import click

from bpfsvc.cleanup import cleanup as remove_everything
from bpfsvc.commands import parameters
from bpfsvc.privileges import require_privileges


@click.command()
@parameters.pin_root
def cleanup(pin_root: Path) -> None:
    """Remove programs, maps, pins, qdiscs and sysctls of an agent that no longer runs."""
    require_privileges()
    for line in remove_everything(pin_root):
        click.echo(line)
