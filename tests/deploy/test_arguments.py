"""The arguments and files in ``deploy/`` are valid, and the node provides what they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bpfsvc.cli.cleanup import cleanup
from bpfsvc.cli.main import main
from bpfsvc.cli.options import DEFAULT_HEALTHZ
from bpfsvc.cli.run import run
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_LAST_GOOD, DEFAULT_PIN_ROOT
from bpfsvc.config.kubeproxy_v1alpha1 import HEALTHZ_PORT, METRICS_PORT
from bpfsvc.config.loading import CommandLine, Documents, load
from bpfsvc.http.healthz import OWN_PATHS
from tests.deploy.kustomize import Object, build, documents
from tests.deploy.rendered import DEPLOY, OVERLAYS, ROOT, only, overlay, pod

TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"


def arguments(container: Object) -> list[str]:
    """Return the words after ``bpfsvc run``, as the agent sees them."""
    words = [word.replace("$(NODE_NAME)", "node-1") for word in container["args"]]
    assert words[0] == "run"
    return words[1:]


def parsed(container: Object) -> dict[str, Any]:
    """Return the parameters as the command's own parser reads the arguments."""
    with run.make_context("run", arguments(container)) as context:
        return dict(context.params)


def test_the_arguments_are_those_of_the_command(agent: Object) -> None:
    """Both containers have the same arguments, except those of the first one's purpose."""
    (node,), (container,) = agent["initContainers"], agent["containers"]
    first, second = parsed(node), parsed(container)
    assert first.pop("init_only") is True
    second.pop("init_only")
    assert first == second
    assert second["hostname_override"] == "node-1"


def test_the_shadow_changes_nothing_and_answers_at_a_port_of_its_own() -> None:
    """No init container, which sets sysctls; no port of kube-proxy's; probes where it serves."""
    spec = pod(overlay("shadow"))
    (container,) = spec["containers"]
    given = parsed(container)
    assert (given["shadow"], given["hostname_override"]) == (True, "node-1")
    assert "initContainers" not in spec
    assert "ports" not in container
    probes = [probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")]
    assert {(probe["host"], probe["port"]) for probe in probes} == {given["shadow_address"]}
    assert all("hostPath" not in volume for volume in spec["volumes"] if volume["name"] == "state")


def test_the_removal_runs_a_command_that_exists() -> None:
    """``bpfsvc cleanup``, without options."""
    spec = pod(build(DEPLOY / "removal"))
    (container,) = spec["initContainers"]
    assert container["args"][0] == cleanup.name
    # click makes the option --help once, by the settings of the first parent.
    with click.Context(main, **main.context_settings) as parent:
        assert cleanup.make_context("cleanup", container["args"][1:], parent=parent)


def mount_of(container: Object, path: Path | str) -> Object:
    """Return the mount that a path is in."""
    mounts: list[Object] = container["volumeMounts"]
    (mount,) = (mount for mount in mounts if Path(path).is_relative_to(mount["mountPath"]))
    return mount


def test_paths_in_arguments_and_defaults_are_mounted(agent: Object) -> None:
    """The file, the cgroups, the pins and the snapshot; what is written is mounted writable."""
    (container,) = agent["containers"]
    given = parsed(container)
    assert mount_of(container, given["file"])["readOnly"]
    assert mount_of(container, given["cgroup_root"])["readOnly"]
    assert not mount_of(container, DEFAULT_PIN_ROOT).get("readOnly")
    assert not mount_of(container, DEFAULT_LAST_GOOD).get("readOnly")


def settings_of(text: str, directory: Path) -> Documents:
    """Return the documents as the agent reads them."""
    file = directory / "config.conf"
    file.write_text(text)
    return load(CommandLine(file=file, names={}))


def test_ports_are_those_of_the_defaults(agent: Object) -> None:
    """Also where probes ask."""
    (container,) = agent["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    healthz = int(DEFAULT_HEALTHZ.rpartition(":")[2])
    assert healthz == HEALTHZ_PORT
    assert ports == {"healthz": healthz, "metrics": METRICS_PORT}
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {probe["port"] for probe in probes.values()} == {"healthz"}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": f"{OWN_PATHS}/livez",
        "readinessProbe": f"{OWN_PATHS}/healthz",
        "livenessProbe": f"{OWN_PATHS}/livez",
    }


@pytest.mark.parametrize("name", ["k3s", "plain"])
def test_the_configuration_is_understood_without_a_remark(name: str, tmp_path: Path) -> None:
    """No unknown field, and nothing without effect; the kubeconfig is the one beside it."""
    data = only(overlay(name), "ConfigMap")["data"]
    settings = settings_of(data["config.conf"], tmp_path)
    assert (settings.warnings, settings.notes) == ((), ())
    (container,) = pod(overlay(name))["containers"]
    directory = mount_of(container, settings.kubeproxy.client_connection.kubeconfig)["mountPath"]
    assert settings.kubeproxy.client_connection.kubeconfig == f"{directory}/kubeconfig.conf"


KUBEADM = Path(__file__).with_name("kubeadm.yaml")


def test_the_configuration_that_kubeadm_wrote_is_understood(tmp_path: Path) -> None:
    """And it finds its kubeconfig where the overlay mounts it."""
    (config_map,) = documents(KUBEADM)
    settings = settings_of(config_map["data"]["config.conf"], tmp_path)
    assert settings.warnings == ()
    spec = pod(overlay("kubeadm"))
    (container,) = spec["containers"]
    mount = mount_of(container, settings.kubeproxy.client_connection.kubeconfig)
    (volume,) = (entry for entry in spec["volumes"] if entry["name"] == mount["name"])
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert "kubeconfig.conf" in config_map["data"]


@pytest.mark.parametrize("name", ["k3s", "plain"])
def test_credentials_are_those_of_the_service_account(name: str) -> None:
    """The kubelet mounts them in every pod, and renews them."""
    kubeconfig = yaml.safe_load(only(overlay(name), "ConfigMap")["data"]["kubeconfig.conf"])
    ((user,), (cluster,)) = kubeconfig["users"], kubeconfig["clusters"]
    assert user["user"] == {"tokenFile": f"{TOKENS}/token"}
    assert cluster["cluster"]["certificate-authority"] == f"{TOKENS}/ca.crt"
    assert cluster["cluster"]["server"].startswith("https://")


def test_every_directory_that_the_handbook_names_is_there() -> None:
    """``kubectl apply -k deploy/...`` works as it is written."""
    text = (ROOT / "docs/operations.md").read_text()
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", text))
    assert {f"deploy/overlays/{name}" for name in OVERLAYS} <= named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
