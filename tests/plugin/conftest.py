"""The plugin in PATH, beside a kubectl that answers from files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PLUGIN = Path(__file__).parents[2] / "deploy" / "plugin" / "kubectl-bpfsvc"
_HERE = Path(__file__).parent

WELL: dict[str, Any] = {
    **{"well": True, "reasons": [], "version": "0.1.0", "build": "aa", "expected_build": "aa"},
    **{"fast_path": "established", "lag_seconds": 0.0, "repaired": 0, "kernel_without": []},
    "maps": {
        "services": {"entries": 1, "capacity": 100},
        "frontends": {"entries": 9, "capacity": 60},
    },
    "carries": {"seconds": 90, "services": []},
}


class Ended(NamedTuple):
    """What a run of the plugin gave."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


def named(name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return an object; ``labels`` go into its metadata, as do ``owner`` and ``annotations``."""
    owner = fields.pop("owner", "")
    metadata: dict[str, Any] = {"name": name, "labels": fields.pop("labels", {})}
    metadata["annotations"] = fields.pop("annotations", {})
    if namespace:
        metadata["namespace"] = namespace
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "any", "controller": True}]
    return {"metadata": metadata, **fields}


def node(name: str, zone: str = "", kernel: str = "6.1.0-30-amd64") -> dict[str, Any]:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    return named(name, labels=labels, status={"nodeInfo": {"kernelVersion": kernel}})


def pod(name: str, on: str, namespace: str = "shop", **fields: Any) -> dict[str, Any]:
    """Return a pod that runs; other fields are those of ``named``."""
    fields.setdefault("status", {"phase": "Running"})
    return named(name, namespace, **{"spec": {"nodeName": on}, "owner": "ReplicaSet", **fields})


class Cluster:
    """What kubectl answers: ``state``, objects by their kind; and ``folder``, with the programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: dict[str, Any] = {"nodes": [], "pods": [], "logs": {}}
        program = folder / "kubectl"
        program.write_text(f"#!{sys.executable} -IS\n{(_HERE / 'kubectl.py').read_text()}")
        for source, name in ((PLUGIN, "kubectl-bpfsvc"), (_HERE / "agent.sh", "bpfsvc")):
            shutil.copy(source, folder / name)
        for name in ("kubectl", "bpfsvc"):
            (folder / name).chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """PATH with the programs; Python as the tests have it."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return {
            **os.environ,
            "PATH": path,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(_HERE.parents[1]),
        }

    def add_agent(self, name: str, facts: dict[str, Any] = WELL, **fields: Any) -> None:
        """Add the agent of a node, which is added too; ``facts``: what it says of itself."""
        label = {"app.kubernetes.io/name": "bpfsvc"}
        if all(item["metadata"]["name"] != name for item in self.state["nodes"]):
            self.state["nodes"].append(node(name))
        fields = {"namespace": "kube-system", "labels": label, "owner": "DaemonSet", **fields}
        self.state["pods"].append(pod(f"bpfsvc-{name}", name, **fields))
        self.state["logs"][f"bpfsvc-{name}"] = {"current": f"log of {name}"}
        self.answer(name, "status", json.dumps(facts), 0 if facts.get("well") else 1)

    def answer(self, name: str, command: str, out: str, status: int = 0, error: str = "") -> None:
        """Have the agent of a node answer a command."""
        file = self.folder / f"bpfsvc-{name}.{command}"
        file.write_text(out)
        Path(f"{file}.status").write_text(str(status))
        Path(f"{file}.error").write_text(error)

    def refuse(self, start: str, text: str) -> None:
        """Have kubectl refuse what begins with these words."""
        self.state.setdefault("refused", {})[start] = text

    def run(self, *words: str, given: str = "", cwd: Path | None = None) -> Ended:
        """Run the plugin as kubectl would."""
        self.save()
        done = subprocess.run(
            self.words(*words),
            input=given,
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            cwd=cwd,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def words(self, *words: str) -> Sequence[str]:
        """Return the command line of the plugin."""
        return [sys.executable, "-IS", str(self.folder / "kubectl-bpfsvc"), *words]

    def save(self) -> None:
        """Write what kubectl answers."""
        (self.folder / "state.json").write_text(json.dumps(self.state))

    def calls(self) -> list[list[str]]:
        """Return the arguments of all calls of kubectl."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def commands(self) -> list[str]:
        """Return the commands that agents got, sorted: they are asked in parallel."""
        return sorted((self.folder / "commands").read_text().splitlines())


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Three nodes with agents that are well."""
    for name in ("n1", "n2", "n3"):
        cluster.add_agent(name)
    return cluster
