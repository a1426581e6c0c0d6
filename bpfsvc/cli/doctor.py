"""``bpfsvc doctor``: check whether bpfsvc can run on this node."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.cli import flags, options
from bpfsvc.cli.agent_settings import load_as_agent
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.cli.maps import WRITERS
from bpfsvc.doctor.examination import about_settings, check, collect, plan_of
from bpfsvc.doctor.finding import Finding, Level
from bpfsvc.inspect.agent_configuration import ask_configuration, usual_pin_root
from bpfsvc.inspect.records import Records

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

_WIDTH = 100
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
@click.option(
    "--from",
    "sysdump",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Check the node of a file of bpfsvc sysdump. This needs no rights, and no other flags.",
)
@flags.add(_FLAGS)
@options.master
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    output: str,
    file: Path | None,
    sysdump: Path | None,
    master: str,
    **values: Any,
) -> None:
    """Check this node: can bpfsvc run here, and which other programs could interfere?

    The settings are those of the agent that runs here, unless --config or other flags are given.
    Nothing is changed. A finding is a refusal, a warning (some traffic may fail), a note, or ok.
    The most serious come first, each with what to do. The exit status is 0 without a refusal,
    else 1.
    """
    if sysdump:
        if file or master or any(values.values()):
            raise UsageError(
                "--from FILE has the settings of its node", "leave out all flags but --output"
            )
        findings = by_severity(_recorded(sysdump))
    else:
        findings = by_severity(_of_this_node(file, master, values))
    if output == "table":
        click.echo("\n".join(lines(findings)))
    else:
        rows = [
            (str(finding.level), finding.subject, finding.text, finding.hint)
            for finding in findings
        ]
        sys.stdout.writelines(WRITERS[output]([Records("findings", _COLUMNS, rows)]))
        sys.stdout.flush()
    ctx.exit(1 if any(finding.level is Level.REFUSE for finding in findings) else 0)


def _recorded(sysdump: Path) -> list[Finding]:
    from bpfsvc.sysdump.archive import read_archive
    from bpfsvc.sysdump.reading import recorded_findings

    return recorded_findings(read_archive(sysdump))


def _of_this_node(file: Path | None, master: str, values: Mapping[str, Any]) -> list[Finding]:
    given = flags.command_line(_FLAGS, values, file=file, master=master)
    pin_root = values["pin_root"]
    root = Path(pin_root) if pin_root else usual_pin_root()
    agent = None if file else ask_configuration(root)
    documents = load_as_agent(given, agent)
    return [*about_settings(documents, agent), *check(collect(plan_of(documents)))]


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the most serious findings first; those of a level stay in their order."""
    levels = [*Level]
    return sorted(findings, key=lambda finding: -levels.index(finding.level))


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield findings, folded, each with its hint on lines of its own.

    In a table, long sentences would push the hints out of view.
    """
    for finding in findings:
        head = f"{finding.level!s:<8}{finding.subject + ':':<13}"
        yield from _folded(head, finding.text)
        if finding.hint:
            yield from _folded(f"{'->':>{len(head) - 1}} ", finding.hint)


def _folded(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        head + text,
        _WIDTH,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
