"""The chart makes the objects of the kustomizations, and says what to do with them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bpfsvc import __version__
from bpfsvc.cli.main import main
from tests.deploy.chart import CHART, IN_PLACE, KUBEADM, PLAIN, SCHEMA, VALUES, rendered, words
from tests.deploy.kustomize import MERGE_KEYS, Object, build, documents
from tests.deploy.programs import run
from tests.deploy.rendered import DEPLOY, ROOT, only


def kustomized(
    directory: Path, resources: Sequence[str], components: Sequence[str]
) -> list[Object]:
    """Return what kubectl makes of folders of ``deploy/``, with components."""
    text = {
        field: [os.path.relpath(DEPLOY / name, directory) for name in names]
        for field, names in (("resources", resources), ("components", components))
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(text))
    done = run("kubectl", "kustomize", directory)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def comparable(value: Any, name: str = "") -> Any:
    """Return a part of an object without what means nothing.

    That is the order of containers and the like, the text of the agent's files, and the hash in the
    name of their ConfigMap.
    """
    if isinstance(value, dict):
        return {key: comparable(part, key) for key, part in value.items()}
    if isinstance(value, list):
        key = MERGE_KEYS.get(name, "")
        parts = [comparable(part) for part in value]
        return sorted(parts, key=lambda part: str(part.get(key))) if key else parts
    if name in ("config.conf", "kubeconfig.conf"):
        return list(yaml.safe_load_all(value))
    if name == "name":
        return re.sub(r"^bpfsvc-(?=.*[0-9])[a-z0-9]{10}$", "bpfsvc-HASH", value)
    return value


def by_name(objects: list[Object]) -> dict[tuple[str, str], Any]:
    """Return objects by kind and name."""
    made = [comparable(each) for each in objects]
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


# -- from one source --


@pytest.mark.parametrize(
    ("resources", "components", "files", "settings"),
    [
        (["overlays/plain"], [], [], (*PLAIN, IN_PLACE)),
        (["overlays/rolling"], [], [], PLAIN),
        (["overlays/kubeadm"], [], ["kubeadm"], ()),
        (["overlays/k3s"], [], ["k3s"], (IN_PLACE,)),
        (["overlays/shadow"], [], ["shadow"], ()),
        (["overlays/kubeadm-canary"], [], ["kubeadm", "canary"], ()),
        (["overlays/shadow"], ["components/canary"], ["shadow", "canary"], ()),
        (["overlays/kubeadm"], ["components/seccomp"], [], (KUBEADM, "components.seccomp=true")),
        (
            ["overlays/kubeadm"],
            ["components/before-linux-5.11", "components/seccomp"],
            ["kubeadm"],
            ("components.beforeLinux511=true", "components.seccomp=true"),
        ),
        (
            ["overlays/kubeadm"],
            ["components/classic-endpoints"],
            ["kubeadm"],
            ("components.classicEndpoints=true",),
        ),
        (["overlays/kubeadm"], ["monitoring"], ["kubeadm"], ()),
        (
            ["overlays/kubeadm"],
            ["monitoring/service-monitor"],
            ["kubeadm"],
            ("monitoring.serviceMonitor=true",),
        ),
        (["overlays/kubeadm", "kube-proxy-cleanup"], [], ["kubeadm"], ("kubeProxyCleanup=true",)),
        (["removal"], [], [], ("mode=removal",)),
        (
            ["overlays/kubeadm-canary", "canary/removal"],
            [],
            ["kubeadm", "canary"],
            ("mode=removal",),
        ),
        (
            ["overlays/kubeadm-canary", "canary/kube-proxy-cleanup"],
            [],
            ["kubeadm", "canary"],
            ("kubeProxyCleanup=true",),
        ),
    ],
    ids=lambda value: "+".join(value) or "-",
)
def test_helm_and_kustomize_make_the_same_objects(
    tmp_path: Path,
    resources: list[str],
    components: list[str],
    files: list[str],
    settings: tuple[str, ...],
) -> None:
    if components == ["monitoring"]:
        names = ("podMonitor", "rules", "dashboards")
        settings = tuple(f"monitoring.{name}=true" for name in names)
    expected = kustomized(tmp_path, resources, components)
    assert by_name(rendered(*settings, files=files)) == by_name(expected)
    if not components:
        simpler = [each for name in resources for each in build(DEPLOY / name)]
        assert by_name(simpler) == by_name(expected), "tests/deploy/kustomize.py"


def test_every_folder_that_kustomize_takes_is_compared() -> None:
    """An overlay or a component that is new needs its value."""
    (mark,) = (
        mark
        for mark in test_helm_and_kustomize_make_the_same_objects.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    compared = {name for case in mark.args[1] for name in (*case[0], *case[1])}
    # Parts of others.
    compared |= {"base", "components/pod-monitor", "monitoring/rules", "monitoring/dashboards"}
    folders = {str(file.parent.relative_to(DEPLOY)) for file in DEPLOY.rglob("kustomization.yaml")}
    assert {name for name in folders if not name.startswith("chart/")} == compared


def test_the_versions_are_those_of_the_package() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__


def test_what_is_written_from_the_schema_is_fresh() -> None:
    """The fields of both configurations, values.yaml, and the table of the page."""
    stale = [path.name for path, text in SCHEMA["written"]().items() if path.read_text() != text]
    assert stale == [], "run: python deploy/chart/schema.py"


# -- what people read, and what helm packs --


def test_the_page_names_files_and_values_that_are_there() -> None:
    text = (ROOT / "docs/chart.md").read_text().replace("REGISTRY", "registry.example")
    assert {name for name in VALUES if f"`{name}.yaml`" not in text} == set()
    named = re.findall(r"deploy/[\w./-]*\w", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    settings = re.findall(r"--set '?(\S+?)'?(?:[ `\n]|$)", text)
    assert settings
    for setting in settings:
        files = [] if setting.startswith("config.") else ["kubeadm"]
        assert rendered(*([] if files else PLAIN), setting, files=files)


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        (["kubeadm"], ()),
        (["kubeadm"], ("kubeProxyCleanup=true",)),
        (["kubeadm", "canary"], ()),
        (["shadow"], ()),
        ([], ("mode=removal",)),
        (["kubeadm", "canary"], ("mode=removal",)),
    ],
    ids=str,
)
def test_the_notes_say_three_commands(files: list[str], settings: tuple[str, ...]) -> None:
    """What they name is there: the DaemonSets, the command of bpfsvc, the values."""
    options = words(files, settings)
    done = run("helm", "install", "--dry-run=client", "-n=net", "bpfsvc", CHART, *options)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:\n")[2]
    commands = [shlex.split(line, comments=True) for line in notes.splitlines() if line[:2] == "  "]
    assert len(commands) == 3
    made = {each["metadata"]["name"] for each in rendered(*settings, files=files)}
    for command in commands:
        assert command[0] in ("kubectl", "helm")
        assert command[1:3] == ["label", "node"] or "--namespace" in command
        assert {word.removeprefix("daemonset/") for word in command if "daemonset/" in word} <= made
        if "--" in command:
            name, subcommand = command[command.index("--") + 1 :]
            assert name == "bpfsvc"
            assert subcommand in main.list_commands(click.Context(main))
        if "--set" in command:
            rendered(command[command.index("--set") + 1], files=["kubeadm"])


def test_a_packaged_chart_has_all_it_needs(tmp_path: Path) -> None:
    """Without the checkout, whose files its folder links to."""
    assert run("helm", "package", CHART, f"--destination={tmp_path}").returncode == 0
    (package,) = tmp_path.iterdir()
    options = words(["kubeadm"], ())
    done = run("helm", "template", "--namespace=kube-system", "bpfsvc", package, *options)
    assert done.stderr == ""
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert by_name(objects) == by_name(rendered(files=["kubeadm"]))


def test_kubectl_takes_the_container_of_the_agent_by_itself() -> None:
    template = only(rendered(*PLAIN), "DaemonSet")["spec"]["template"]
    name = template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    assert name in {container["name"] for container in template["spec"]["containers"]}
