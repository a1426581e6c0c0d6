"""The suite "migration": from kube-proxy to bpfsvc and back, and no connection notices.

For each mode of kube-proxy: kube-proxy alone, then each step of docs/migration.md by its own
commands, while clients use Services and a load balancer asks for the nodes' health. One connection
that fails or is cut, and one answer about health that is missing or not true, fails the case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.kube_proxy import Mode
from tests.cluster.load import clients, objects, scenarios
from tests.cluster.load import suite as load
from tests.cluster.load.clients import Clients, wait_for
from tests.cluster.load.tool import Job
from tests.cluster.migration.document import Operator
from tests.cluster.migration.health import HealthChecks, Question
from tests.cluster.report import Report

NAME: Final = "migration"

_MODES: Final[tuple[Mode, ...]] = ("nftables", "iptables")
_HEALTHZ_PORT: Final = 10256
_LOCAL: Final = "local"
_LONG: Final = 250
"""Long-lived connections of each family, by NodePorts: masqueraded."""
_NEW: Final = 15
"""New connections a second of each family to the Service with the policy Local."""
_BESIDE: Final = 5.0
"""Seconds of load after a step."""


def run(cluster: Cluster, report: Report, _whole: bool) -> None:
    """Go there and back for each mode; bpfsvc is alone on the cluster afterwards, as before."""
    operator = Operator(cluster)
    load.add_images(cluster)
    cluster.start_kube_proxy(_MODES[0])
    _remove_bpfsvc(cluster, operator)
    scenarios.set_up(cluster)
    clients.apply(cluster, _local_service())
    with report.case(NAME, "kube-proxy's answers make no agent ready"):
        _only_agents_make_ready(cluster, operator)
    for mode in _MODES:
        cluster.start_kube_proxy(mode)
        _kube_proxy_serves(cluster, mode)
        with report.case(NAME, f"from kube-proxy to bpfsvc, {mode}") as figures:
            _go_there(cluster, operator, figures)
        with report.case(NAME, f"from bpfsvc to kube-proxy, {mode}") as figures:
            _come_back(cluster, operator, mode, figures)
    scenarios.tear_down(cluster)
    _leave_bpfsvc(cluster, operator)


def _remove_bpfsvc(cluster: Cluster, operator: Operator) -> None:
    cluster.remove_bpfsvc()
    operator.do("Back", 3)
    operator.do("Back", 4)


def _leave_bpfsvc(cluster: Cluster, operator: Operator) -> None:
    """Have bpfsvc alone on the cluster, whatever has failed before."""
    cluster.deploy_bpfsvc()
    cluster.start_kube_proxy(_MODES[-1])
    operator.do("There", 3)
    operator.do("There", 4)
    operator.do("There", 4, 1)
    cluster.stop_kube_proxy()


def _local_service() -> objects.Object:
    """Return a Service with ``externalTrafficPolicy: Local`` before the backends ``kept``."""
    made = objects.service(_LOCAL)
    made["spec"] |= {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "selector": {"app": "kept"},
    }
    return made


def _questions(cluster: Cluster) -> list[Question]:
    """Return what a load balancer asks: of all nodes, one has endpoints of ``local``."""
    words = ("get", "service", _LOCAL, "-n", objects.NAMESPACE, "-o", "json")
    port = json.loads(cluster.kubectl(*words))["spec"]["healthCheckNodePort"]
    made = []
    for name, node in cluster.nodes.items():
        local = 200 if name == scenarios.QUIET else 503
        for address in map(str, node.host.addresses):
            made.append(Question(address, port, "/", local))
            made.append(Question(address, _HEALTHZ_PORT, "/healthz", 200))
    return made


def _also(cluster: Cluster) -> list[Job]:
    kept = clients.node_port_target(cluster, "kept", (scenarios.QUIET, scenarios.BUSY))
    local = clients.node_port_target(cluster, _LOCAL, (scenarios.QUIET, scenarios.QUIET))
    return [
        *(Job("keep", "tcp", place, kept.tcp, _LONG) for place in kept.places),
        *(Job("connect", "tcp", place, local.tcp, _NEW) for place in local.places),
    ]


@contextmanager
def _load(cluster: Cluster, figures: dict[str, object]) -> Iterator[Clients]:
    """The clients and the load balancer while the block runs and for a while after."""
    running = scenarios.clients(cluster, also=_also(cluster))
    with running, HealthChecks(cluster, _questions(cluster)) as asking:
        try:
            yield running
        except BaseException:
            figures |= clients.figures(running.reports()) | asking.figures
            raise
        reports = running.go_on()
    figures |= asking.figures
    with (cluster.results / f"{NAME}.txt").open("a") as file:
        print(*asking.events, sep="\n", file=file)
    load.account(reports, cluster, figures, NAME)
    asking.judge()
    left = _names(cluster, "app.kubernetes.io/name=bpfsvc-command")
    assert not left, f"pods of commands are left: {', '.join(left)}"


def _names(cluster: Cluster, selector: str) -> list[str]:
    """Return the names of the pods of the system with a label."""
    return [pod["metadata"]["name"] for pod in scenarios.pods(cluster, selector)]


def _go_there(cluster: Cluster, operator: Operator, figures: dict[str, object]) -> None:
    with _load(cluster, figures) as running:
        operator.do("There", 1)
        operator.do("There", 2)
        for pod in _names(cluster, scenarios.AGENTS):
            # At once: that the rollout has passed means that each agent serves.
            cluster.kubectl("exec", "-n", scenarios.SYSTEM, pod, "--", "bpfsvc", "status")
        running.go_on(_BESIDE)
        operator.do("There", 2, 1)
        operator.do("There", 3)
        _kube_proxy_ends(cluster)
        operator.do("There", 3, 1)
        cluster.rolled_out("daemonset", "kube-proxy", scenarios.SYSTEM)
        running.go_on(_BESIDE)
        operator.do("There", 3)
        _kube_proxy_ends(cluster)
        operator.do("There", 4)
        running.go_on(_BESIDE)
        operator.do("There", 5)
        for node in cluster.nodes:
            rules = _rules(cluster, node)
            assert not rules, f"{node} still has rules of kube-proxy: {rules[:5]}"
        running.let_go()
        operator.do("There", 4, 1)


def _kube_proxy_ends(cluster: Cluster) -> None:
    selector = "k8s-app=kube-proxy"
    wait_for(lambda: not _names(cluster, selector), "no kube-proxy is left", 60)


def _kube_proxy_serves(cluster: Cluster, mode: Mode) -> None:
    """Wait for its rules on all nodes: kubeadm's DaemonSet is ready before it has written any."""
    words = {"nftables": "service-", "iptables": "KUBE-SVC-"}
    lists = {"nftables": ["nft", "list", "ruleset"], "iptables": ["iptables-save"]}

    def written() -> bool:
        return all(words[mode] in cluster.enter(node, lists[mode]) for node in cluster.nodes)

    wait_for(written, "kube-proxy has written its rules on all nodes", 120)


def _rules(cluster: Cluster, node: str) -> list[str]:
    """Return what is left of kube-proxy's rules, as text."""
    listed = [
        *cluster.enter(node, ["nft", "list", "tables"]).splitlines(),
        *cluster.enter(node, ["iptables-save"]).splitlines(),
        *cluster.enter(node, ["ip6tables-save"]).splitlines(),
    ]
    names = ("kube-proxy", "KUBE-SVC", "KUBE-SERVICES", "KUBE-NODEPORTS")
    return [line for line in listed if any(name in line for name in names)]


def _come_back(
    cluster: Cluster, operator: Operator, mode: Mode, figures: dict[str, object]
) -> None:
    with _load(cluster, figures) as running:
        cluster.start_kube_proxy(mode)
        operator.do("Back", 1)
        _kube_proxy_serves(cluster, mode)
        running.go_on(_BESIDE)
        operator.do("Back", 2)
        running.go_on(_BESIDE)
        operator.do("Back", 3)
        running.go_on(_BESIDE)
        running.let_go()
        operator.do("Back", 4)
        _nothing_is_left(cluster)


def _nothing_is_left(cluster: Cluster) -> None:
    for node in cluster.nodes:
        pins = cluster.enter(node, ["find", "/sys/fs/bpf", "-name", "*bpfsvc*"]).split()
        assert not pins, f"{node} still has {pins}"
        reserved = cluster.enter(node, ["sysctl", "-n", "net.ipv4.ip_local_reserved_ports"])
        assert not reserved.strip(), f"{node} still reserves ports: {reserved}"


def _only_agents_make_ready(cluster: Cluster, operator: Operator) -> None:
    """Start the DaemonSet with something in the agent's place that answers nothing."""
    overlay = operator.folder / "deploy" / "overlays" / "kubeadm"
    documents = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(overlay))))
    (pods,) = (
        document["spec"]["template"] for document in documents if document["kind"] == "DaemonSet"
    )
    (agent,) = pods["spec"]["containers"]
    agent["command"] = ["python", "-c", "import signal; signal.pause()"]
    del agent["args"]
    text = yaml.safe_dump_all(documents)
    cluster.apply(text)
    try:
        wait_for(lambda: _refused(cluster) == set(cluster.nodes), "kube-proxy answers probes", 120)
        agents = scenarios.pods(cluster, scenarios.AGENTS)
        ready = [pod["metadata"]["name"] for pod in agents if scenarios.ready(pod)]
        assert not ready, f"ready without an agent: {', '.join(ready)}"
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait", "-f", "-", stdin=text)


def _refused(cluster: Cluster) -> set[str]:
    """Return the nodes where a probe of the agent's pod was answered that there is no such path."""
    events = cluster.get("events", "-n", scenarios.SYSTEM, "--field-selector=reason=Unhealthy")
    refused = {event["involvedObject"]["name"] for event in events if "404" in event["message"]}
    return {
        pod["spec"]["nodeName"]
        for pod in scenarios.pods(cluster, scenarios.AGENTS)
        if pod["metadata"]["name"] in refused
    }
