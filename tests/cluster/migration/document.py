"""The commands of docs/migration.md, run as an operator runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.settings import CHECKOUT

DOCUMENT: Final = CHECKOUT / "docs" / "migration.md"
Way = Literal["There", "Back"]
Step = tuple[Way, int]

_BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CGROUP = "hostPath: {path: /sys/fs/cgroup, type: Directory}"
_SECONDS: Final = 300


def function(text: str) -> str:
    """Return the shell function ``node`` of the document."""
    (found,) = (block for block in _BLOCK.findall(text) if block.startswith("node() {"))
    return str(found)


def steps(text: str) -> dict[Step, list[str]]:
    """Return the blocks of commands of each numbered step, in the order of the document."""
    seen: dict[Step, list[str]] = {}
    ways: tuple[Way, Way] = ("There", "Back")
    for way in ways:
        section = re.split(r"^## ", text.partition(f"\n## {way}\n")[2], maxsplit=1, flags=re.M)[0]
        for step in re.split(r"^\*\*(?=\d+\. )", section, flags=re.MULTILINE)[1:]:
            seen[way, int(step.partition(".")[0])] = _BLOCK.findall(step)
    return seen


def for_nodes(block: str, nodes: Iterable[str]) -> str:
    """Return a block with the commands for ``NAME`` written for each node."""
    lines = []
    for line in block.splitlines():
        named = line.startswith("node NAME ")
        lines += [line.replace("NAME", name, 1) for name in nodes] if named else [line]
    return "\n".join(lines)


class Operator:
    """Somebody with kubectl and a copy of ``deploy``, changed as docs/operations.md asks for.

    ``folder``: what the copy is in.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.folder = cluster.settings.state / "operator"
        text = DOCUMENT.read_text()
        self._function = function(text)
        self._steps = steps(text)
        copy_of_deploy(self.folder, hybrid=cluster.settings.cgroups == "hybrid")

    def do(self, way: Way, step: int, block: int = 0) -> str:
        """Run one block of a step and return what it printed.

        ``ClusterError`` with that if a command of it ends with another status than 0.
        """
        commands = for_nodes(self._steps[way, step][block], self._cluster.nodes)
        settings = self._cluster.settings
        path = f"{settings.bin}:{os.environ['PATH']}"
        process = self._cluster.popen(
            ["bash", "-ec", f"{self._function}\n{commands}"],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "KUBECONFIG": str(settings.kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with process:
            try:
                said, _ = process.communicate(timeout=_SECONDS)
            except BaseException:
                process.kill()
                raise
        with (self._cluster.results / "migration-commands.txt").open("a") as file:
            print(f"{way} {step}", commands, said, sep="\n", file=file)
        if process.returncode != 0:
            raise ClusterError(
                f"{way.lower()}, step {step}, ended with {process.returncode}: {said.strip()}"
            )
        return said


def copy_of_deploy(folder: Path, *, hybrid: bool) -> None:
    """Write ``deploy`` into ``folder``, for hybrid hierarchies of cgroups if they are."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CHECKOUT / "deploy", folder / "deploy")
    if hybrid:
        for file in (folder / "deploy").rglob("*.yaml"):
            text = file.read_text()
            file.write_text(text.replace(_CGROUP, _CGROUP.replace("cgroup,", "cgroup/unified,")))
