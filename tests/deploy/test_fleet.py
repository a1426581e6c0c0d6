"""Which proxy serves a node, by its label; and settings that are rolled out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import Object, build, merged
from tests.deploy.rendered import DEPLOY, ROOT, only, overlay, pod

LABEL = "bpfsvc.io/proxy"
KUBE_PROXY: Object = {
    "spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}
}


def runs_on(spec: Object, value: str) -> bool:
    """True if pods with such a spec run on a node with a value of the label, "" for none."""
    labels = {"kubernetes.io/os": "linux", **({LABEL: value} if value else {})}
    if not spec.get("nodeSelector", {}).items() <= labels.items():
        return False
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    wanted = spec.get("affinity", {}).get("nodeAffinity", {}).get(required)
    if wanted is None:
        return True
    return any(
        all(_holds(expression, labels) for expression in term["matchExpressions"])
        for term in wanted["nodeSelectorTerms"]
    )


def _holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    within = labels.get(expression["key"]) in expression["values"]
    return within if expression["operator"] == "In" else not within


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("", {"kube-proxy"}),
        ("beside", {"bpfsvc", "kube-proxy"}),
        ("alone", {"bpfsvc", "cleanup of kube-proxy"}),
        ("leaving", {"kube-proxy", "removal of bpfsvc"}),
    ],
)
def test_a_label_says_what_runs_on_a_node(label: str, expected: set[str]) -> None:
    """A node always has a proxy; what one of them left is removed only where the other runs."""
    patch = yaml.safe_load((DEPLOY / "canary/kube-proxy.yaml").read_text())
    specs = {
        "bpfsvc": pod(build(DEPLOY / "overlays/kubeadm-canary")),
        "kube-proxy": merged(KUBE_PROXY, patch)["spec"]["template"]["spec"],
        "cleanup of kube-proxy": pod(build(DEPLOY / "canary/kube-proxy-cleanup")),
        "removal of bpfsvc": pod(build(DEPLOY / "canary/removal")),
    }
    assert {name for name, spec in specs.items() if runs_on(spec, label)} == expected


def test_kube_proxys_rules_are_removed_only_where_bpfsvc_serves() -> None:
    """The pod sees whether kube-proxy runs, and asks bpfsvc first."""
    spec = pod(build(DEPLOY / "kube-proxy-cleanup"))
    assert spec["hostPID"] is spec["hostNetwork"] is True
    commands = [container["args"] for container in spec["initContainers"]]
    assert commands == [["status"], ["cleanup", "--kube-proxy", "--yes"]]


def test_settings_that_are_rolled_out_are_those_of_plain() -> None:
    """The pods name the ConfigMap by its hash, so that another one is another template."""
    rolled, plain = build(DEPLOY / "overlays/rolling"), overlay("plain")
    settings = only(rolled, "ConfigMap")
    assert settings["data"] == only(plain, "ConfigMap")["data"]
    name = settings["metadata"]["name"]
    assert name.startswith("bpfsvc-")
    volumes = {volume["name"]: volume for volume in pod(rolled)["volumes"]}
    assert volumes["config"]["configMap"]["name"] == name


def test_every_folder_that_the_page_names_is_there() -> None:
    words = (ROOT / "docs/fleet.md").read_text().replace("`", " ").replace(")", " ").split()
    named = {word.rstrip(":.,") for word in words if word.startswith("deploy/")}
    assert "deploy/overlays/rolling" in named
    assert {each for each in named if not (ROOT / each).exists()} == set()
