"""``bpfsvc doctor``: is this node fit for bpfsvc, and what stands beside it?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bpfsvc.commands import parameters
from bpfsvc.commands.gotypes import Words
from bpfsvc.commands.maps import WRITERS
from bpfsvc.config import DEFAULT_MASQUERADE_PORTS
from bpfsvc.datapath.attachment import WAYS, Way
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange
from bpfsvc.doctor.examination import Plan, judge, look
from bpfsvc.doctor.finding import Finding, Level
from bpfsvc.inspection.records import Records

_COLUMNS = ("level", "subject", "finding", "hint")


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Choice([*WRITERS]),
    default="table",
    show_default=True,
    help="A line for each finding, or one document for programs.",
)
@parameters.pin_root
@click.option("--cgroup-root", metavar="DIR|none", default=None, help="As of bpfsvc run.")
@click.option("--devices", type=Words("pattern,..."), default=(), help="As of bpfsvc run.")
@click.option("--attach", type=click.Choice(WAYS), default="auto", help="As of bpfsvc run.")
@click.option("--tc-priority", type=int, default=PRIORITY, help="As of bpfsvc run.")
@click.option(
    "--masquerade-ports",
    type=parameters.Ports(),
    default=DEFAULT_MASQUERADE_PORTS,
    show_default=str(DEFAULT_MASQUERADE_PORTS),
    help="As of bpfsvc run.",
)
@click.option(
    "--service-node-port-range",
    "node_ports",
    type=parameters.Ports(),
    default=NODE_PORTS,
    show_default=str(NODE_PORTS),
    help="As of bpfsvc run.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    default=None,
    help="Names the API server; as of bpfsvc run.",
)
@click.option("--master", metavar="URL", default="", help="The API server; as of bpfsvc run.")
@click.pass_context
def doctor(
    ctx: click.Context,
    output: str,
    pin_root: Path,
    cgroup_root: str | None,
    devices: tuple[str, ...],
    attach: Way,
    tc_priority: int,
    masquerade_ports: PortRange,
    node_ports: PortRange,
    kubeconfig: Path | None,
    master: str,
) -> None:
    """Look before one leaps: is this node fit, and what stands beside? Nothing is changed.

    A finding is ok, a note, a warning (some traffic may suffer), or refuses. The exit status is 0
    if none refuses, else 1.
    """
    plan = Plan(
        pin_root=pin_root,
        cgroup_root=cgroup_root,
        devices=devices,
        attach=attach,
        tc_priority=tc_priority,
        masquerade_ports=masquerade_ports,
        node_ports=node_ports,
        kubeconfig=kubeconfig,
        master=master,
    )
    findings = tuple(judge(look(plan)))
    if output == "table":
        click.echo("\n".join(_lines(findings)))
    else:
        rows = [(str(each.level), each.subject, each.text, each.hint) for each in findings]
        sys.stdout.writelines(WRITERS[output]([Records("findings", _COLUMNS, rows)]))
        sys.stdout.flush()
    ctx.exit(1 if any(each.level is Level.REFUSE for each in findings) else 0)


def _lines(findings: tuple[Finding, ...]) -> list[str]:
    """Give a line for each: sentences do not fit a table, and hints would be lost at its end."""
    return [
        f"{each.level!s:<8}{each.subject + ':':<13}{each.text}"
        + (f" -> {each.hint}" if each.hint else "")
        for each in findings
    ]
