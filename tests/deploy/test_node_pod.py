"""The pod that runs one command on one node, and the commands that docs/migration.md gives it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from bpfsvc import __version__
from bpfsvc.cli.main import main
from tests.deploy.kustomize import Object
from tests.deploy.rendered import DEPLOY, ROOT, check_schema

MIGRATION = (ROOT / "docs/migration.md").read_text()
COMMANDS = re.findall(r"^node NAME (.+)$", MIGRATION, re.MULTILINE)


def created(command: str, tmp_path: Path) -> Object:
    """Return the pod as the documented function gives it to ``kubectl create``."""
    function = re.search(r"^node\(\) \{\n.*?^\}$", MIGRATION, re.MULTILINE | re.DOTALL)
    assert function
    tmp_path.joinpath("kubectl").write_text('#!/bin/sh\n[ "$1" != create ] || cat > "$POD"\n')
    tmp_path.joinpath("kubectl").chmod(0o755)
    file = tmp_path / "pod"
    subprocess.run(
        ["bash", "-c", f'PATH="{tmp_path}:$PATH"\n{function[0]}\nnode n1.example {command}'],
        cwd=ROOT,
        env={"POD": str(file), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    pod: Object = yaml.safe_load(file.read_text())
    return pod


def test_there_are_commands() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"doctor", "verify", "cleanup"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documented_function_makes_a_pod_that_runs_the_command(
    command: str, tmp_path: Path
) -> None:
    pod = created(command, tmp_path)
    check_schema(pod, "1.37")
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["nodeName"] == "n1.example"
    assert container["args"] == shlex.split(command)
    assert container["image"] == f"bpfsvc:{__version__}"
    name, *words = container["args"]
    found = main.get_command(click.Context(main), name)
    assert found is not None
    # An unknown option raises.
    with click.Context(main, **main.context_settings) as parent:
        assert found.make_context(name, words, parent=parent)


def test_what_the_commands_name_is_mounted() -> None:
    """kube-proxy's configuration, and the cgroups; the pins are at their usual place."""
    pod = yaml.safe_load((DEPLOY / "node/pod.yaml").read_text())
    mounted = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    named = set(re.findall(r"=(/[\w/.-]+)", " ".join(COMMANDS)))
    assert named
    for path in named:
        assert any(Path(path).is_relative_to(each) for each in mounted), path
    assert "/sys/fs/bpf" in mounted
