"""``bpfsvc doctor``: check whether bpfsvc can run on this node."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bpfsvc.cli import flags, options
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.cli.maps import WRITERS
from bpfsvc.cli.server_release import ask_release
from bpfsvc.config.documents import NOTHING, of_agent
from bpfsvc.config.loading import Documents, load, make_config
from bpfsvc.doctor.examination import DoctorPlan, check, collect
from bpfsvc.doctor.finding import Finding, Level, note, ok, warning
from bpfsvc.inspect.agent_configuration import ask_configuration, usual_pin_root
from bpfsvc.inspect.records import Records
from bpfsvc.model.answers import AgentConfiguration

_FLAGS = flags.pick(
    (*KUBE_PROXY, *BPFSVC),
    "--pin-root",
    "--cgroup-root",
    "--devices",
    "--attach",
    "--tc-priority",
    "--masquerade-ports",
    "--service-node-port-range",
    "--kubeconfig",
)
"""The flags of ``bpfsvc run`` on which the checks depend."""

_COLUMNS = ("level", "subject", "finding", "hint")


@click.command()
@options.output("table", "json", "yaml")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The configuration file for bpfsvc run, for example kube-proxy's. Settings that bpfsvc"
    " treats differently are reported.",
)
@flags.add(_FLAGS)
@options.master
@click.pass_context
def doctor(
    ctx: click.Context, /, output: str, file: Path | None, master: str, **values: Any
) -> None:
    """Check this node: can bpfsvc run here, and which other programs could interfere?

    Nothing is changed. A finding is ok, a note, a warning (some traffic may fail), or a refusal.
    The exit status is 0 without a refusal, else 1.
    """
    given = flags.command_line(_FLAGS, values, file=file, master=master)
    agent = None if file else _agent(values["pin_root"])
    if agent:
        given = dataclasses.replace(given, master=given.master or agent.master)
    beneath = of_agent(agent.documents) if agent else NOTHING
    documents = load(given, ask_release=ask_release, beneath=beneath)
    config = make_config(documents, "", None)
    plan = DoctorPlan(
        pin_root=config.pin_root,
        cgroup_root=documents.bpfsvc.cgroup_root or None,
        devices=config.devices,
        attach=config.attach,
        tc_priority=config.tc_priority,
        masquerade_ports=config.masquerade_ports,
        node_ports=config.node_ports,
        kubeconfig=config.kubeconfig,
        master=config.master,
    )
    findings = (*_about_settings(documents, agent), *check(collect(plan)))
    if output == "table":
        click.echo("\n".join(_lines(findings)))
    else:
        rows = [
            (str(finding.level), finding.subject, finding.text, finding.hint)
            for finding in findings
        ]
        sys.stdout.writelines(WRITERS[output]([Records("findings", _COLUMNS, rows)]))
        sys.stdout.flush()
    ctx.exit(1 if any(finding.level is Level.REFUSE for finding in findings) else 0)


def _agent(pin_root: str | None) -> AgentConfiguration | None:
    """Return the configuration of the agent that runs here; the checks are about that one."""
    return ask_configuration(Path(pin_root) if pin_root else usual_pin_root())


def _about_settings(documents: Documents, agent: AgentConfiguration | None) -> Iterator[Finding]:
    """Yield findings about a configuration file, or whose settings are examined without one."""
    if agent:
        yield ok("config", f"as of the agent that runs here (process {agent.process})")
    if documents.file is None:
        return
    yield ok("config", f"{documents.file} can be used, in mode {documents.kubeproxy.mode}")
    for text in documents.warnings:
        yield warning("config", text)
    for text in documents.notes:
        yield note("config", text)


def _lines(findings: tuple[Finding, ...]) -> list[str]:
    """Return a line per finding: in a table, long sentences would push the hints out of view."""
    return [
        f"{finding.level!s:<8}{finding.subject + ':':<13}{finding.text}"
        + (f" -> {finding.hint}" if finding.hint else "")
        for finding in findings
    ]
