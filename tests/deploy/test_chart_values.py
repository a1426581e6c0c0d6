"""The values of the chart: each has an effect, and those without a meaning are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.chart import CHART, KUBEADM, PLAIN, SCHEMA, VALUES, refusal, rendered, words
from tests.deploy.programs import run
from tests.deploy.rendered import check_schema, only, pod
from tests.deploy.test_arguments import settings_of


@pytest.mark.parametrize("name", VALUES)
def test_every_file_of_values_makes_objects_and_passes_lint(name: str, tmp_path: Path) -> None:
    """Its configuration is understood by the agent without a remark."""
    needed = () if name in ("kubeadm", "shadow", "k3s", "rke2") else PLAIN[:1]
    objects = rendered(*needed, files=[name])
    assert pod(objects)["hostNetwork"]
    for each in objects:
        if each["kind"] == "ConfigMap" and "config.conf" in each["data"]:
            settings = settings_of(each["data"]["config.conf"], tmp_path)
            assert (settings.warnings, settings.notes) == ((), ())
    done = run("helm", "lint", "--strict", CHART, *words([name], needed))
    assert done.returncode == 0, done.stdout


SAMPLES = {
    "mode": "mode=shadow",
    "image.repository": "image.repository=registry.example/bpfsvc",
    "image.tag": "image.tag=1.2.3",
    "image.pullPolicy": "image.pullPolicy=Never",
    "image.pullSecrets": "image.pullSecrets[0].name=registry",
    "config.configMap": "",
    "config.server": "config.server=https://[fd00::1]:6443",
    "config.kubeProxy": "config.kubeProxy.conntrack.udpTimeout=1m30s",
    "config.bpfsvc": "config.bpfsvc.mapSizes.backendSlots=16777216",
    "config.rolling": "config.rolling=false",
    "flags": "flags={--socket-lb=off}",
    "components.canary": "components.canary=true",
    "components.seccomp": "components.seccomp=true",
    "components.beforeLinux511": "components.beforeLinux511=true",
    "components.classicEndpoints": "components.classicEndpoints=true",
    "kubeProxyCleanup": "kubeProxyCleanup=true",
    "monitoring.podMonitor": "monitoring.podMonitor=true",
    "monitoring.serviceMonitor": "monitoring.serviceMonitor=true",
    "monitoring.rules": "monitoring.rules=true",
    "monitoring.dashboards": "monitoring.dashboards=true",
    "cgroupPath": "cgroupPath=/sys/fs/cgroup/unified",
    "maxUnavailable": "maxUnavailable=25%",
    "nodeSelector": "nodeSelector.pool=edge",
    "tolerations": "tolerations[0].key=gpu",
    "resources": "resources.limits.memory=1Gi",
    "podAnnotations": "podAnnotations.team=network",
    "podLabels": "podLabels.team=network",
}
"""Another value for each one there is; the ConfigMap of kubeadm excludes others."""

METRICS = "config.kubeProxy.metricsBindAddress=0.0.0.0:10249"


@pytest.mark.slow
def test_every_value_has_an_effect_and_is_valid_for_kubernetes() -> None:
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert SAMPLES.keys() == {path for path, _ in SCHEMA["leaves"](properties)}
    before = rendered(*PLAIN, METRICS)
    for path, setting in SAMPLES.items():
        after = rendered(*PLAIN, METRICS, setting) if setting else rendered(KUBEADM)
        assert after != before, path
        for each in after:
            if each not in before and each["apiVersion"] != "monitoring.coreos.com/v1":
                check_schema(each, "1.37")


def test_flags_are_those_of_both_containers_and_large_numbers_stay_numbers() -> None:
    objects = rendered(*PLAIN, SAMPLES["flags"], SAMPLES["config.bpfsvc"])
    spec = pod(objects)
    ends = {each["args"][-1] for each in (*spec["containers"], *spec["initContainers"])}
    assert ends == {"--socket-lb=off"}
    assert "backendSlots: 16777216\n" in only(objects, "ConfigMap")["data"]["config.conf"]


@pytest.mark.parametrize("rolling", [True, False])
def test_another_setting_is_another_template_of_pods_if_settings_are_rolled_out(
    rolling: bool,
) -> None:
    first, second = (
        rendered(
            *PLAIN, f"config.rolling={str(rolling).lower()}", f"config.bpfsvc.socketLb={value}"
        )
        for value in ("all", "off")
    )
    assert only(first, "ConfigMap") != only(second, "ConfigMap")
    assert (only(first, "DaemonSet") != only(second, "DaemonSet")) is rolling


MEANINGLESS = {
    "nonsense=1": "at '': additional properties 'nonsense'",
    "mode=fast": "at '/mode'",
    "image.tag=a/b": "at '/image/tag'",
    "image.pullPolicy=Sometimes": "at '/image/pullPolicy'",
    "config.nonsense=1": "at '/config': additional properties 'nonsense'",
    "config.server=control-plane": "at '/config/server'",
    "config.kubeProxy.clusterCIDR=nonsense": "at '/config/kubeProxy/clusterCIDR'",
    "config.kubeProxy.hostnameOverride=n1": "'hostnameOverride'",
    "config.kubeProxy.healthzBindAddress=:1": "'healthzBindAddress'",
    "config.kubeProxy.conntrack.min=few": "at '/config/kubeProxy/conntrack/min'",
    "config.kubeProxy.conntrack.udpTimeout=1x": "at '/config/kubeProxy/conntrack/udpTimeout'",
    "config.kubeProxy.mode=ebpf": "at '/config/kubeProxy/mode'",
    "config.kubeProxy.metricsBindAddress=:1": "at '/config/kubeProxy/metricsBindAddress'",
    "config.bpfsvc.fastPaht=off": "at '/config/bpfsvc': additional properties 'fastPaht'",
    "config.bpfsvc.fastPath=maybe": "at '/config/bpfsvc/fastPath'",
    "config.bpfsvc.mapSizes.connections=0": "at '/config/bpfsvc/mapSizes/connections'",
    "config.bpfsvc.masqueradePorts=1": "at '/config/bpfsvc/masqueradePorts'",
    "flags={socket-lb}": "at '/flags/0'",
    "components.seccomp=perhaps": "at '/components/seccomp'",
    "components.cannary=true": "at '/components': additional properties 'cannary'",
    "cgroupPath=unified": "at '/cgroupPath'",
    "maxUnavailable=110%": "at '/maxUnavailable'",
    "tolerations[0].effect=Never": "at '/tolerations/0/effect'",
    "resources.limits.cpu=lots": "at '/resources/limits/cpu'",
    "resources.limit.cpu=1": "at '/resources': additional properties 'limit'",
    "podLabels.app\\.kubernetes\\.io/name=x": "at '/podLabels/app.kubernetes.io~1name'",
}
"""What the schema refuses, and how it says so."""


@pytest.fixture(scope="module")
def refused() -> str:
    """What helm says of all meaningless values at once."""
    return refusal(*MEANINGLESS)


@pytest.mark.parametrize(("setting", "named"), MEANINGLESS.items())
def test_a_value_without_a_meaning_is_refused_by_its_name(
    refused: str, setting: str, named: str
) -> None:
    assert named in refused, setting


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["nonsense=1"], "at '': additional properties 'nonsense'"),
        (["maxUnavailable=0"], "at '/maxUnavailable'"),
        ([], "config.server: needs an address of the API server"),
        ([KUBEADM, PLAIN[1]], "config.configMap: the settings are those of the ConfigMap"),
        ([*PLAIN, "monitoring.podMonitor=true"], "config.kubeProxy.metricsBindAddress"),
        (
            [*PLAIN, METRICS, "monitoring.podMonitor=true", "monitoring.serviceMonitor=true"],
            "monitoring.serviceMonitor: with monitoring.podMonitor",
        ),
        ([KUBEADM, "mode=shadow", "monitoring.podMonitor=true"], "monitoring: shadow mode"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_values_that_do_not_go_together_are_refused_by_name(
    settings: list[str], named: str
) -> None:
    assert named in refusal(*settings)
