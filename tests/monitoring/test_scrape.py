"""A real Prometheus scrapes agents under load: what panels and alerts ask for is there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any, NamedTuple

import pytest

from bpfsvc.devtools.bench.baselines import BaselineService, write_rules
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.objects import port, service, service_cidr, slices
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS, Lab
from tests.monitoring.files import METRIC, alerts, queries
from tests.monitoring.prometheus import RATE_INTERVAL, Prometheus, running_prometheus

pytestmark = pytest.mark.slow

WEB, EMPTY, SHADOWED, WRONG = (f"10.96.0.{number}" for number in (10, 12, 14, 16))
NODE_PORT = 30080
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"


class Monitored(NamedTuple):
    """A node with an agent and a node in shadow mode, and Prometheus on the first.

    A client outside keeps a connection open.
    """

    lab: Lab
    cluster: LabCluster
    prometheus: Prometheus
    turns: list[float]
    """When load was made, by the monotonic clock."""

    def step(self) -> None:
        """Do what every metric needs: connections, refusals, changes, and a faulty object.

        At most twice a second: more would only keep the processors from the others.
        """
        if self.turns and time.monotonic() < self.turns[-1] + 0.5:
            return
        self.turns.append(time.monotonic())
        pods, turn = self.lab.pods, len(self.turns)
        for client in (pods[0], self.lab.nodes[0]):
            for _ in range(3):
                ask(client, WEB, 80)
            ask(client, SHADOWED, 80)
        ask(self.lab.client, self.lab.nodes[0].address(), NODE_PORT)
        for _ in range(6):
            ask(pods[2], SHADOWED, 80)
        for refused in (pods[0], self.lab.client):
            for address in (EMPTY, WRONG):
                with suppress(OSError):
                    ask(refused, address, 80)
        self.cluster.put("web", *self._web(turn))
        broken: Any = slices("broken", pods[:1], [port(8080, "web")])[0]
        broken["metadata"]["name"] = f"broken-{turn}"
        broken["endpoints"][0]["addresses"] = ["10.244.1.300"]
        self.cluster.put("broken", broken)

    def _web(self, turn: int) -> list[Any]:
        made = slices("web", self.lab.pods[: 1 + turn % 2], [port(8080, "web")])
        for one_slice in made:
            now = datetime.now(UTC).isoformat()
            one_slice["metadata"]["annotations"] = {TRIGGER: now}
        ports = [port(80, "web", nodePort=NODE_PORT)]
        return [service("web", [WEB], ports, type="NodePort"), *made]


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    sandbox.require()
    with Lab("routed", families=(4,)) as lab:
        lab.serve()
        first, second = lab.nodes
        at_client = (lab.client, lab.client.address())
        with LabCluster(lab, served=at_client) as cluster:
            write_rules(second, "nftables", [shadowed(lab)], IPv4Network(CLUSTER_CIDRS[4]))
            cluster.put(
                "services",
                service_cidr("10.96.0.0/12"),
                service("empty", [EMPTY], [port(80, "web")]),
                service("wrong", [WRONG], [port(80, "web")]),
                *slices("wrong", lab.pods[:1], [port(9999, "web")]),
                service("shadowed", [SHADOWED], [port(80, "http")]),
                *slices("shadowed", lab.pods[:1], [port(8080, "http")]),
            )
            shown = "--metrics-services=default/web,default/empty,default/wrong"
            # SYNs to the wrong target port are dropped by the pod, for want of a socket.
            options = ["--metrics-bind-address=0.0.0.0:10249", "--count-drops-elsewhere", shown]
            cluster.start(first, options=options)
            cluster.launch(
                second,
                options=[
                    *("--shadow", "--shadow-tolerance=1s", "--proxy-mode=nftables"),
                    "--shadow-bind-address=0.0.0.0:10276",
                ],
            ).expect("shadow mode: comparing", 20)
            lab.client.route("10.96.0.0/16", via=first)
            targets = [
                f"{first.address()}:10249",
                f"{second.address()}:10276",
                f"{second.address()}:10249",  # where kube-proxy is no more
            ]
            directory = tmp_path_factory.mktemp("prometheus")
            with running_prometheus(first, targets, directory) as prometheus:
                made = Monitored(lab, cluster, prometheus, [])
                made.cluster.put("web", *made._web(0))
                cluster.settle([first])
                with connect(lab.client, first.address(), NODE_PORT):
                    yield made


def shadowed(lab: Lab) -> BaselineService:
    """Return a Service that kube-proxy's rules lead to two pods, one of which is no endpoint."""
    backends = tuple((pod.address(), 8080) for pod in lab.pods[:2])
    return BaselineService("default/shadowed:http", SHADOWED, 80, backends=backends)


def expression(query: str) -> str:
    """Return a query of Grafana as Prometheus takes it; all Services and nodes are chosen."""
    return re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", RATE_INTERVAL))


def await_data(monitored: Monitored, wanted: dict[str, str]) -> None:
    """Make load until every query, by name, has given data."""
    missing = dict(wanted)

    def have_all() -> bool:
        monitored.step()
        for name, query in list(missing.items()):
            if monitored.prometheus.samples(expression(query)):
                del missing[name]
        return not missing

    try:
        wait(have_all, "all queries give data", timeout=60)
    except TimeoutError:
        raise AssertionError(f"no data: {missing}") from None


def test_every_query_of_every_panel_gives_data(monitored: Monitored) -> None:
    names = {f"{query.dashboard}: {query.panel}: {query.expression}": query for query in queries()}
    assert len(names) > 60
    await_data(monitored, {name: query.expression for name, query in names.items()})


def test_every_label_of_a_legend_is_there(monitored: Monitored) -> None:
    await_data(monitored, {query.expression: query.expression for query in queries()})
    for query in queries():
        labels = set(re.findall(r"{{(\w+)}}", query.legend))
        samples = monitored.prometheus.samples(expression(query.expression))
        assert any(labels <= metric.keys() for metric in samples), query


def test_every_metric_that_rules_and_dashboards_name_is_served(monitored: Monitored) -> None:
    texts = [rule["expr"] for rule in alerts().values()]
    texts += [query.expression for query in queries()]
    named = {name for text in texts for name in METRIC.findall(text)}
    assert len(named) > 40

    def missing() -> set[str]:
        return named - monitored.prometheus.names()

    def all_are_there() -> bool:
        monitored.step()
        return not missing()

    with suppress(TimeoutError):
        wait(all_are_there, "all metrics are served", timeout=60)
    assert missing() == set()


def test_prometheus_evaluates_every_rule(monitored: Monitored) -> None:
    def evaluated() -> dict[str, Any]:
        groups = monitored.prometheus.get("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    wait(
        lambda: all(rule["health"] != "unknown" for rule in evaluated().values()),
        "all rules have been evaluated",
    )
    assert evaluated().keys() == alerts().keys()
    assert {name: rule.get("lastError", "") for name, rule in evaluated().items()} == dict.fromkeys(
        alerts(), ""
    )


def test_an_alert_of_a_fault_says_what_it_is_about(monitored: Monitored) -> None:
    """The one fault here is that of the rules; no other alert fires."""
    name = "BpfsvcShadowDifferences"

    def firing() -> list[dict[str, Any]]:
        monitored.step()
        found: list[dict[str, Any]] = monitored.prometheus.get("alerts")["alerts"]
        return [alert for alert in found if alert["state"] == "firing"]

    wait(lambda: bool(firing()), f"{name} fires", timeout=60)
    fired = firing()
    assert {alert["labels"]["alertname"] for alert in fired} == {name}
    assert fired[0]["annotations"]["summary"].startswith(
        "kube-proxy and bpfsvc differ about default/shadowed ("
    )
    assert fired[0]["annotations"]["runbook"] == f"docs/runbooks/{name}.md"


def mixin(selector: str) -> dict[str, str]:
    """Return what the panels of kubernetes-mixin's dashboard of kube-proxy ask for.

    Written from their titles and metrics, without the panel of goroutines.
    """

    def late(name: str, more: str = "") -> str:
        chosen = f"{{{selector}{more}}}[{RATE_INTERVAL}]"
        return f"histogram_quantile(0.99, sum by (instance, le) (rate({name}_bucket{chosen})))"

    def rate(name: str, more: str = "") -> str:
        return f"sum by (instance) (rate({name}{{{selector}{more}}}[{RATE_INTERVAL}]))"

    sync = "kubeproxy_sync_proxy_rules_duration_seconds"
    programming = "kubeproxy_network_programming_duration_seconds"
    request = "rest_client_request_duration_seconds"
    return {
        "Up": f"sum(up{{{selector}}})",
        "Rules Sync Rate": rate(f"{sync}_count"),
        "Rules Sync Latency 99th Quantile": late(sync),
        "Network Programming Rate": rate(f"{programming}_count"),
        "Network Programming Latency 99th Quantile": late(programming),
        "Kube API Request Rate": rate("rest_client_requests_total", ',code=~"2.."'),
        "POST Request Latency 99th Quantile": late(request, ',verb="POST"'),
        "GET Request Latency 99th Quantile": late(request, ',verb="GET"'),
        "Memory": f"process_resident_memory_bytes{{{selector}}}",
        "CPU usage": rate("process_cpu_seconds_total"),
    }


def test_ten_of_the_eleven_panels_of_kube_proxys_dashboard_give_data(monitored: Monitored) -> None:
    monitored.cluster.api.cut_watches()  # a new watch is a GET; else there is one in ten minutes
    await_data(monitored, mixin('job="kube-proxy"'))
    assert monitored.prometheus.samples("go_goroutines") == []


def test_both_alerts_about_kube_proxy_see_agents(monitored: Monitored) -> None:
    """That of a missing job is quiet, that of an instance names the one that does not answer."""
    await_data(monitored, {"up": 'up{job="kube-proxy"} == 1', "down": 'up{job="kube-proxy"} == 0'})
    assert monitored.prometheus.samples('absent(up{job="kube-proxy"} == 1)') == []
    (down,) = monitored.prometheus.samples('up{job="kube-proxy"} == 0')
    assert down["instance"] == f"{monitored.lab.nodes[1].address()}:10249"


def test_the_sum_of_other_services_does_not_get_the_namespace_of_the_agents(
    monitored: Monitored,
) -> None:
    """An empty label of a sample is kept with ``honorLabels``, and a sum has no namespace."""
    await_data(monitored, {"other": 'bpfsvc_service_connections_total{name="other"}'})
    samples = monitored.prometheus.samples("bpfsvc_service_connections_total")
    named = {(labels.get("namespace"), labels["name"]) for labels in samples}
    assert named == {("default", "web"), ("default", "wrong"), (None, "other")}
