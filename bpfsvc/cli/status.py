"""``bpfsvc status``: is this node healthy?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from bpfsvc.cli import options
from bpfsvc.datapath.maps.pins import NotLoaded, PinRoot
from bpfsvc.inspect.node_health import as_object, lines, problems
from bpfsvc.inspect.shadow import Report, ask_shadow, report_lines
from bpfsvc.inspect.status import collect_status


@click.command()
@options.output("text", "json")
@options.healthz
@options.shadow_address
@options.pin_root
@click.pass_context
def status(
    ctx: click.Context,
    output: str,
    healthz: tuple[str, int] | None,
    shadow_address: tuple[str, int] | None,
    pin_root: Path,
) -> None:
    """Show whether this node is healthy, and what it carries.

    The first line is about the agent: "healthy", or "UNHEALTHY:" with the problems; the exit status
    is 0 or 1. The second line is about traffic, in the last one or two minutes: Services whose
    backends fail connections, and Services that refuse clients. It does not change the exit status,
    because a Service can fail on a node that works. For
    an agent in shadow mode, the differences from kube-proxy are shown; the exit status is 1 if
    there is a difference.
    """
    try:
        facts = collect_status(PinRoot(pin_root), healthz)
    except NotLoaded as error:
        if shadow_address and (report := ask_shadow(shadow_address)):
            _show_shadow(ctx, report, output)
        if output == "json":
            click.echo(json.dumps({"well": False, "reasons": [error.message]}, indent=2))
        else:
            click.echo(f"UNHEALTHY: {error.message}")
        click.echo(f"Hint: {error.hint}", err=True)
        ctx.exit(1)
    if output == "json":
        click.echo(json.dumps(as_object(facts), indent=2))
    else:
        click.echo("\n".join(lines(facts)))
    ctx.exit(1 if problems(facts) else 0)


def _show_shadow(ctx: click.Context, report: Report, output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"shadow": report}, indent=2))
    else:
        click.echo("\n".join(report_lines(report)))
    ctx.exit(1 if report["differences"] else 0)
