"""``bpfsvc sysdump``: what this node knows, in one file to send to others."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.base.private_file import open_private
from bpfsvc.base.privileges import require_privileges
from bpfsvc.base.texts import count_text
from bpfsvc.cli import completion, options
from bpfsvc.cli.agent_settings import load_as_agent
from bpfsvc.config.fields import Flag
from bpfsvc.config.loading import CommandLine, make_config
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.agent_configuration import ask_configuration
from bpfsvc.sysdump.archive import PartResult
from bpfsvc.sysdump.collection import Subject, write_sysdump

_STDOUT = "-"
_MEGABYTE = 1 << 20


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE|-",
    default="",
    shell_complete=completion.files,
    help="The archive; '-' writes it to standard output."
    "  [default: bpfsvc-sysdump-NODE-TIME.tar.gz in this directory]",
)
@click.option(
    "--anonymize",
    is_flag=True,
    help="Replace addresses, and the names of nodes, namespaces, Services and pods; the same name"
    " has the same replacement in the whole archive.",
)
@click.option(
    "--max-size",
    metavar="MEGABYTES",
    type=click.FloatRange(min=0.01, max=4096),
    default=16.0,
    show_default=True,
    help="Size of the archive; parts for which there is no room are cut.",
)
@options.pin_root
def sysdump(output: str, anonymize: bool, max_size: float, pin_root: Path) -> None:
    """Write what this node knows into one archive (tar.gz), for others to look at.

    It has the configuration, status, findings and facts of doctor, the maps, what the agent knows
    of Services, history, metrics, the agent's log, interfaces, routes, rules, and versions. Tokens,
    passwords, keys and certificates are left out. A part that fails is noted in manifest.json.

    bpfsvc doctor --from FILE and bpfsvc explain --from FILE read it, on any machine and without
    rights. Nothing on this node is changed.
    """
    require_privileges()
    subject = _subject(pin_root)
    if output == _STDOUT:
        if sys.stdout.isatty():
            raise UsageError("the archive is not for a terminal", "redirect it: ... -o - > FILE")
        stream = sys.stdout.buffer
        results = write_sysdump(stream, subject, int(max_size * _MEGABYTE), anonymous=anonymize)
        stream.flush()
        _report("standard output", results)
        return
    name = "anonymous" if anonymize else subject.node_name
    path = Path(output or time.strftime(f"bpfsvc-sysdump-{name}-%Y%m%d-%H%M%S.tar.gz"))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb", opener=open_private) as file:
            results = write_sysdump(file, subject, int(max_size * _MEGABYTE), anonymous=anonymize)
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "name another file with --output"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    _report(str(path), results)


def _subject(pin_root: Path) -> Subject:
    """Return this node, with the settings of the agent that runs here."""
    agent = ask_configuration(pin_root)
    flag = Flag("--pin-root", ("pinRoot",), str(pin_root))
    documents = load_as_agent(CommandLine(bpfsvc=(flag,), names={}), agent)
    name = agent.node_name if agent else options.node_name(None)
    config = make_config(documents, name, None)
    return Subject(PinRoot(pin_root), name, documents, config, agent)


def _report(where: str, results: list[PartResult]) -> None:
    """Say on standard error what was written, with a line about each part that is not whole."""
    click.echo(f"wrote {count_text(len(results), 'part')} to {where}", err=True)
    for part in results:
        if part.result != "ok":
            click.echo(f"  {part.name}: {part.result}: {part.note}", err=True)
