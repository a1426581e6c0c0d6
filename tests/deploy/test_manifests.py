"""What is in ``deploy/`` is valid, and asks for no more than the agent needs."""

from __future__ import annotations

import re

import pytest
import yaml

from bpfsvc import __version__
from bpfsvc.base import privileges
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.privileges import CAPABILITIES, Capability
from bpfsvc.devtools.lab.rights import granted
from bpfsvc.kube import resources
from tests.deploy.kustomize import Object, build, merged
from tests.deploy.rendered import DEPLOY, OVERLAYS, ROOT, allowed, check_schema, only, overlay, pod

VERSIONS = ("1.30", "1.37")
"""The first Kubernetes with appArmorProfile, and the last one there are schemas of."""

KUSTOMIZATIONS = sorted(
    str(file.parent.relative_to(DEPLOY))
    for file in DEPLOY.rglob("kustomization.yaml")
    if "resources:" in file.read_text()
)
"""Those that make objects. A component that only patches is part of the overlay that uses it."""

PODS = {
    name: pod(build(DEPLOY / name))
    for name in (*(f"overlays/{each}" for each in OVERLAYS), "overlays/shadow", "removal")
}
"""The specs of all pods."""

every_pod = pytest.mark.parametrize("spec", PODS.values(), ids=PODS)


def containers(spec: Object) -> list[Object]:
    """Return all containers of a pod."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


# -- the objects themselves --


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_every_object_is_what_the_schema_of_kubernetes_allows(name: str, version: str) -> None:
    """Strictly: an unknown field is an error. A PodMonitor is not Kubernetes' own."""
    for each in build(DEPLOY / name):
        if each["apiVersion"] != "monitoring.coreos.com/v1":
            check_schema(each, version)


@pytest.mark.parametrize("name", OVERLAYS)
def test_all_objects_of_a_namespace_are_in_that_of_system_pods(name: str) -> None:
    """There the role's binding finds the account, and pods may be critical."""
    objects = overlay(name)
    for manifest in objects:
        cluster_wide = manifest["kind"].startswith("ClusterRole")
        assert manifest["metadata"].get("namespace") == (None if cluster_wide else "kube-system")
    account = only(objects, "ServiceAccount")["metadata"]
    (subject,) = only(objects, "ClusterRoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


@every_pod
def test_every_mount_has_its_volume_and_every_volume_its_mount(spec: Object) -> None:
    """What no schema checks."""
    mounted = {
        each["name"] for container in containers(spec) for each in container.get("volumeMounts", ())
    }
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@every_pod
def test_the_image_is_that_of_this_version(spec: Object) -> None:
    """The tag follows the package, and so does the label that the Dockerfile gives it."""
    assert {container["image"] for container in containers(spec)} == {f"bpfsvc:{__version__}"}
    assert f"ARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()


def test_the_pod_monitor_finds_the_pods_and_their_port() -> None:
    """By label and by the name of the port."""
    monitor = only(build(DEPLOY / "components/pod-monitor"), "PodMonitor")["spec"]
    template = only(overlay("plain"), "DaemonSet")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_the_service_monitor_finds_the_pods_and_their_port_by_its_service() -> None:
    objects = build(DEPLOY / "monitoring/service-monitor")
    monitor, found = only(objects, "ServiceMonitor")["spec"], only(objects, "Service")
    template = only(overlay("plain"), "DaemonSet")["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    assert found["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ports = {each["name"]: each for each in template["spec"]["containers"][0]["ports"]}
    (endpoint,), (port,) = monitor["endpoints"], found["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    assert ports[port["targetPort"]]["containerPort"] == port["port"]


def test_both_monitors_give_targets_the_same_labels() -> None:
    """So that alerts and dashboards work with either."""
    pods = only(build(DEPLOY / "components/pod-monitor"), "PodMonitor")["spec"]
    services = only(build(DEPLOY / "monitoring/service-monitor"), "ServiceMonitor")["spec"]
    assert pods["podMetricsEndpoints"] == services["endpoints"]


def test_the_component_of_monitoring_scrapes_and_has_the_alerts() -> None:
    kinds = {each["kind"] for each in build(DEPLOY / "monitoring")}
    assert {"PodMonitor", "PrometheusRule"} <= kinds


# -- requested rights --


@pytest.mark.parametrize("directory", ["removal", "kube-proxy-cleanup"])
def test_what_only_waits_is_nobody_and_has_no_rights(directory: str) -> None:
    """The container that stays after the privileged command of the pod."""
    (waiting,) = pod(build(DEPLOY / directory))["containers"]
    assert waiting["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def followed(
    *which: resources.Resource, kinds: set[str] | None = None
) -> set[tuple[str, str, str]]:
    """Return what following resources takes, of some kinds only if they are named."""
    return {
        (variant.group, variant.plural, verb)
        for resource in which
        for variant in resource.variants
        if kinds is None or variant.kind in kinds
        for verb in ("list", "watch")
    }


def test_the_role_allows_what_the_agent_asks_for_and_nothing_else() -> None:
    """Lists and watches of what it follows, and writing events; Endpoints are a component's."""
    endpoints = followed(resources.ENDPOINTS, kinds={"EndpointSlice"})
    of_node = (resources.node("any"), resources.pods("any"))
    others = followed(resources.SERVICES, resources.SERVICE_CIDRS, *of_node)
    events = {("events.k8s.io", "events", verb) for verb in ("create", "patch")}
    assert allowed(overlay("plain")) == endpoints | others | events
    classic = followed(resources.ENDPOINTS, kinds={"Endpoints"})
    assert allowed(build(DEPLOY / "components/classic-endpoints")) == classic


def test_the_agent_may_move_sockets_of_the_nodes_processes(agent: Object) -> None:
    """tests/lab/test_udp_sockets.py shows that this is enough for it."""
    (container,) = agent["containers"]
    assert agent["hostPID"]
    assert "SYS_PTRACE" in container["securityContext"]["capabilities"]["add"]


def names(of: list[Capability]) -> list[str]:
    """Return the names as a manifest has them."""
    return sorted(capability.name.removeprefix("CAP_") for capability in of)


def test_the_agent_gets_the_capabilities_of_the_table_and_no_others(agent: Object) -> None:
    """tests/lab/test_least_rights.py shows that they are enough, and takes each away."""
    (container,) = agent["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": names(granted("5.11.0"))}
    assert context["allowPrivilegeEscalation"] is False
    assert "privileged" not in context


def test_on_linux_5_10_the_agent_may_also_lift_the_limit_of_locked_memory() -> None:
    patch = yaml.safe_load((DEPLOY / "components/before-linux-5.11/daemonset.yaml").read_text())
    (changed,) = merged(only(overlay("plain"), "DaemonSet"), patch)["spec"]["template"]["spec"][
        "containers"
    ]
    capabilities = {"drop": ["ALL"], "add": names(granted("5.10.0-39-amd64"))}
    assert changed["securityContext"]["capabilities"] == capabilities
    assert set(granted("5.10.0")) == {*CAPABILITIES}


def test_the_documents_table_is_that_of_the_capabilities() -> None:
    """Its name, its use, and whether an agent starts without it."""
    text = (ROOT / "docs/security.md").read_text()
    rows = re.findall(r"^\| (CAP_\w+)([^|]*) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    told = {
        (name, use, without == "does not start", "Linux 5.10" in when)
        for name, when, use, without in rows
    }
    wanted = {
        (made.name, made.use, made.is_required, made.before is not None) for made in CAPABILITIES
    }
    assert told == wanted
    assert len(rows) == len(CAPABILITIES)


def test_an_agent_starts_with_them_and_not_without_what_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*capabilities: Capability) -> None:
        rights = sum(1 << capability.number for capability in capabilities)
        monkeypatch.setattr(privileges, "_effective_capabilities", lambda: rights)
        privileges.require_privileges()

    required = [capability for capability in CAPABILITIES if capability.is_required]
    start(*required)
    for missing in required:
        with pytest.raises(BpfsvcError, match=f"lacks {missing.name} "):
            start(*(capability for capability in CAPABILITIES if capability != missing))


def test_the_component_of_seccomp_names_the_profile_for_the_agent_alone() -> None:
    """The init container is privileged; its mounts are no business of the profile."""
    patch = yaml.safe_load((DEPLOY / "components/seccomp/daemonset.yaml").read_text())
    spec = merged(only(overlay("plain"), "DaemonSet"), patch)["spec"]["template"]["spec"]
    ((container,), (node,)) = spec["containers"], spec["initContainers"]
    profile = container["securityContext"]["seccompProfile"]
    assert profile == {"type": "Localhost", "localhostProfile": "bpfsvc.json"}
    assert (DEPLOY / "seccomp" / profile["localhostProfile"]).is_file()
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "seccompProfile" not in node["securityContext"]


@every_pod
def test_root_file_systems_are_read_only(spec: Object) -> None:
    """Nothing but the volumes can be written to."""
    assert all(
        container["securityContext"]["readOnlyRootFilesystem"] for container in containers(spec)
    )
