"""The suite "helm": bpfsvc's life by its chart, while clients use Services as in "under-load".

The chart takes over what kubectl has applied; settings and an image are rolled out and taken back;
settings that no agent can use stop at the first node; the release goes and comes again. One
connection that fails or is cut, and one datagram without an answer, fails the case.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.cluster.addresses import POD_CIDRS
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import URL
from tests.cluster.errors import ClusterError
from tests.cluster.load import scenarios
from tests.cluster.load import suite as load
from tests.cluster.load.clients import wait_for
from tests.cluster.product import UNIFIED
from tests.cluster.report import Report
from tests.cluster.settings import CHECKOUT
from tests.deploy.programs import program

NAME: Final = "helm"

_CHART: Final = CHECKOUT / "deploy/chart"
_KUBE_VERSION: Final = 'kubeVersion: ">=1.30.0-0"'
"""The line of the chart that Kubernetes' programs without a version do not satisfy."""
_SETTING: Final = "config.bpfsvc.historyMegabytes=8"
_FORCE: Final = "--force-conflicts"
"""kubectl stays an owner of the fields that it has applied, so helm may not change them else."""
_UNUSABLE: Final = "config.bpfsvc.scheduler=nonsense"
"""Well-formed, so the schema takes it; the agent does not."""


class Helm:
    """helm as the cluster's administrator; every change is to this one release.

    ``changed_image``: another image of bpfsvc, which the nodes have.
    """

    def __init__(self, cluster: Cluster, changed_image: str) -> None:
        self._cluster = cluster
        self.changed_image = changed_image
        chart = cluster.settings.state / "chart"
        shutil.rmtree(chart, ignore_errors=True)
        shutil.copytree(_CHART, chart)
        about = chart / "Chart.yaml"
        text = about.read_text()
        if text.count(_KUBE_VERSION) != 1:
            raise ClusterError(f"the chart does not have the line {_KUBE_VERSION} once")
        about.write_text(text.replace(_KUBE_VERSION, ""))
        self._chart = str(chart)

    def run(self, *words: str) -> str:
        """Run helm and return its output; ``ClusterError`` with its words if it fails."""
        command = [str(program("helm")), "--namespace", scenarios.SYSTEM, *words]
        environment = {
            "HOME": str(self._cluster.settings.state),
            "KUBECONFIG": str(self._cluster.settings.kubeconfig),
        }
        with self._cluster.inside():
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "level=INFO" not in line]
            raise ClusterError(f"helm {' '.join(words)}: {' '.join(said)}")
        return done.stdout

    def install(self, *words: str) -> None:
        """Install the chart with what this cluster needs, and wait until all agents are ready."""
        values: dict[str, Any] = {
            "config": {"server": URL, "kubeProxy": {"clusterCIDR": ",".join(POD_CIDRS)}}
        }
        if self._cluster.settings.cgroups == "hybrid":
            values["cgroupPath"] = UNIFIED
        file = self._cluster.settings.state / "values.json"
        file.write_text(json.dumps(values))
        self.run("install", "bpfsvc", self._chart, f"--values={file}", "--wait", *words)

    def upgrade(self, *settings: str, words: tuple[str, ...] = ("--wait",)) -> None:
        """Change values of the release; what was set before stays."""
        changes = [f"--set={setting}" for setting in settings]
        self.run(
            "upgrade", "bpfsvc", self._chart, "--reset-then-reuse-values", _FORCE, *changes, *words
        )

    def rollback(self) -> None:
        """Go back to the revision before."""
        self.run("rollback", "bpfsvc", "--wait", _FORCE)


def run(cluster: Cluster, report: Report, _whole: bool) -> None:
    """Begin with bpfsvc by kubectl; it is there by kubectl afterwards, as before."""
    cluster.deploy_bpfsvc()
    load.add_images(cluster)
    changed = load.add_changed_image(cluster)
    scenarios.set_up(cluster)
    helm = Helm(cluster, changed)
    for name, scenario in _SCENARIOS.items():
        with report.case(NAME, name) as figures, scenarios.clients(cluster) as running:
            scenario(cluster, helm)
            load.account(running.go_on(), cluster, figures, NAME)
    scenarios.tear_down(cluster)
    helm.run("uninstall", "bpfsvc", "--ignore-not-found", "--wait")
    cluster.deploy_bpfsvc()


def _agents(cluster: Cluster) -> dict[str, str]:
    """Return the pod's identity of each node's agent."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["uid"]
        for pod in scenarios.pods(cluster, scenarios.AGENTS)
    }


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ClusterError(f"not so: {what}")


def _all_replaced(cluster: Cluster, before: Mapping[str, str]) -> None:
    cluster.rolled_out("daemonset", "bpfsvc", scenarios.SYSTEM)
    after = _agents(cluster)
    _require(after.keys() == cluster.nodes.keys(), f"each node has an agent: {after}")
    _require(not {*after.values()} & {*before.values()}, "all pods of agents were replaced")


def _history_megabytes(cluster: Cluster) -> set[int]:
    """Return the setting that is changed, as the agents have it."""
    words = ["curl", "-s", "http://127.0.0.1:10249/configz"]
    answers = [json.loads(cluster.enter(node, words)) for node in cluster.nodes]
    return {answer["bpfsvc.io"]["historyMegabytes"] for answer in answers}


def _take_over(cluster: Cluster, helm: Helm) -> None:
    helm.install("--take-ownership", _FORCE, "--set=config.rolling=false")
    cluster.rolled_out("daemonset", "bpfsvc", scenarios.SYSTEM)


def _settings(cluster: Cluster, helm: Helm) -> None:
    changes: dict[int, Callable[[], None]] = {
        8: lambda: helm.upgrade("config.rolling=true", _SETTING),
        16: helm.rollback,
    }
    for megabytes, change in changes.items():
        before = _agents(cluster)
        change()
        _all_replaced(cluster, before)
        _require(_history_megabytes(cluster) == {megabytes}, f"the agents have {megabytes}")


def _unusable(cluster: Cluster, helm: Helm) -> None:
    before = _agents(cluster)
    try:
        helm.upgrade(_UNUSABLE, "config.rolling=true", words=("--wait", "--timeout=45s"))
    except ClusterError as error:
        _require("deadline" in str(error) or "timed out" in str(error), str(error))
    else:
        raise ClusterError("helm upgrade has taken settings that no agent can use")
    kept = {*_agents(cluster).values()} & {*before.values()}
    _require(len(kept) == len(before) - 1, f"one agent was stopped, not {len(before) - len(kept)}")
    helm.rollback()
    wait_for(
        lambda: all(map(scenarios.ready, scenarios.pods(cluster, scenarios.AGENTS))),
        "all agents are ready again",
        120,
    )


def _image(cluster: Cluster, helm: Helm) -> None:
    first = scenarios.image(cluster)
    repository, _, tag = helm.changed_image.rpartition(":")
    before = _agents(cluster)
    # A tag of digits is a number to --set, which the schema refuses.
    helm.upgrade(
        f"image.repository={repository}", words=(f"--set-string=image.tag={tag}", "--wait")
    )
    _all_replaced(cluster, before)
    _require(scenarios.image(cluster) != first, "the agents have the other image")
    before = _agents(cluster)
    helm.rollback()
    _all_replaced(cluster, before)
    _require(scenarios.image(cluster) == first, "the agents have the first image again")


def _go_and_come(cluster: Cluster, helm: Helm) -> None:
    helm.run("uninstall", "bpfsvc", "--wait")
    wait_for(lambda: not _agents(cluster), "the agents have ended", 60)
    helm.install()
    scenarios.roll_backends(cluster)


_SCENARIOS: Final[dict[str, Callable[[Cluster, Helm], None]]] = {
    "helm takes over what kubectl has applied": _take_over,
    "settings are upgraded and rolled back": _settings,
    "settings that no agent can use stop at the first node, and are rolled back": _unusable,
    "an image with other map layouts is upgraded to and rolled back": _image,
    "the release is uninstalled and installed again": _go_and_come,
}
