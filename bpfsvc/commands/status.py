"""``bpfsvc status``: is this node well?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from bpfsvc.commands.parameters import healthz as healthz_option
from bpfsvc.commands.parameters import pin_root as pin_root_option
from bpfsvc.datapath.pins import NotLoaded, PinRoot
from bpfsvc.inspection.status import look
from bpfsvc.inspection.verdict import as_object, lines, reasons


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Ten lines for people, or one object for programs.",
)
@healthz_option
@pin_root_option
@click.pass_context
def status(
    ctx: click.Context, output: str, healthz: tuple[str, int] | None, pin_root: Path
) -> None:
    """Say in ten lines whether this node is well.

    The first line is "well", or "NOT WELL:" with the reasons; the exit status is 0 or 1.
    """
    try:
        facts = look(PinRoot(pin_root), healthz)
    except NotLoaded as error:
        if output == "json":
            click.echo(json.dumps({"well": False, "reasons": [error.message]}, indent=2))
        else:
            click.echo(f"NOT WELL: {error.message}")
        click.echo(f"Hint: {error.hint}", err=True)
        ctx.exit(1)
    if output == "json":
        click.echo(json.dumps(as_object(facts), indent=2))
    else:
        click.echo("\n".join(lines(facts)))
    ctx.exit(1 if reasons(facts) else 0)
