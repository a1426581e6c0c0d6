"""``bpfsvc validate``: manifests before they are applied."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.cli import options
from bpfsvc.kube.manifests.documents import Unusable, read_raw
from bpfsvc.kube.manifests.tree import is_manifest
from bpfsvc.services import validation
from bpfsvc.services.validation import Finding, Located

_INPUT = "-"


@click.command()
@click.argument("files", metavar="[FILE|DIR|-]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--tar", is_flag=True, help="Standard input is a tar archive of manifests.")
@options.output("text", "json")
def validate(files: tuple[Path, ...], tar: bool, output: str) -> None:
    """Check manifests before they are applied: is it what bpfsvc will do?

    Annotations of bpfsvc are checked by name, value and kind of object, and Services for fields
    that contradict each other, for values and addresses that would be refused or left out, and for
    frontends that two Services name. No agent and no cluster is needed. The exit status is 1 if
    something is wrong.
    """
    if bool(files) == tar:
        raise UsageError("no manifests are named", "name files, a directory, or - (standard input)")
    findings: list[Finding] = []
    objects: list[Located] = []
    for name, text in _archived() if tar else _contents(files):
        try:
            for item in read_raw(name, text):
                objects.append(Located(name, item.value, item.line))
        except Unusable as unusable:
            findings += [
                Finding(problem.file, problem.line, "-", problem.reason)
                for problem in unusable.problems
            ]
    findings = sorted([*findings, *validation.validate(objects)])
    if output == "json":
        rows = [finding._asdict() for finding in findings]
        click.echo(json.dumps({"objects": len(objects), "findings": rows}, indent=2))
    else:
        for finding in findings:
            click.echo("{}:{}: {}: {}".format(*finding).replace(": -: ", ": "))
        click.echo(f"{len(objects)} objects, {len(findings)} findings")
    sys.exit(1 if findings else 0)


def _contents(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        if str(file) == _INPUT:
            yield _INPUT, sys.stdin.buffer.read()
            continue
        try:
            members = sorted(file.rglob("*")) if file.is_dir() else [file]
            for member in members:
                if member == file or (member.is_file() and is_manifest(member.name)):
                    yield str(member), member.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}", "name a manifest") from error


def _archived() -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            for entry in archive:
                if entry.isfile() and (content := archive.extractfile(entry)):
                    yield entry.name, content.read()
    except tarfile.TarError as error:
        raise UsageError(f"standard input is no tar archive: {error}", "leave out --tar") from error
