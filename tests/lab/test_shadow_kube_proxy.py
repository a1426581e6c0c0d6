"""Shadow mode beside the real kube-proxy, while endpoints come, drain and go: no difference."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from bpfsvc.devtools.bench.kube_proxy import RealKubeProxy
from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import (
    Host,
    Object,
    endpoint_of,
    endpoint_slice,
    port,
    service,
    service_cidr,
)
from bpfsvc.devtools.lab.patience import wait
from tests.apiserver.kubernetes import programs
from tests.lab.testbed import FAMILIES, Testbed, built_testbed

pytestmark = pytest.mark.kubernetes

SECONDS = 20.0
HTTP = (port(8080, "http"), port(8080, "dns", "UDP"))
EXTERNAL = {4: "80.11.12.10", 6: "2001:db8:80::10"}
BALANCER = {4: "80.11.12.20", 6: "2001:db8:80::20"}

NAMES = ("web", "local", "sticky", "inner", "host")
"""A Service each of policy Cluster, external Local, with affinity, internal Local, of the nodes."""

SPECS: dict[str, dict[str, Any]] = {
    "web": {"externalIPs": list(EXTERNAL.values()), "ingress": list(BALANCER.values())},
    "local": {"externalTrafficPolicy": "Local"},
    "sticky": {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
    },
    "inner": {"internalTrafficPolicy": "Local"},
    "host": {},
}


def vip(name: str, family: int) -> str:
    number = 1 + NAMES.index(name)
    return f"10.96.0.{number}" if family == 4 else f"fd96::{number}"


def node_port(name: str) -> int:
    return 30001 + NAMES.index(name)


def made(name: str) -> Object:
    ports = [
        port(80, "http", nodePort=node_port(name)),
        port(80, "dns", "UDP", nodePort=node_port(name)),
    ]
    addresses = [vip(name, family) for family in FAMILIES]
    return service(name, addresses, ports, type="LoadBalancer", **SPECS[name])


def put_endpoints(testbed: Testbed, name: str, state: Callable[[], dict[str, bool]]) -> None:
    """Put the slices of a Service; ``state`` returns the conditions of an endpoint."""
    hosts: list[Host] = [*(testbed.lab.nodes if name == "host" else testbed.lab.pods)]
    states = [state() for _ in hosts]
    testbed.cluster.put(
        f"{name}-slices",
        *(
            endpoint_slice(
                name,
                [endpoint_of(host, family, **how) for host, how in zip(hosts, states, strict=True)],
                HTTP,
                name=f"{name}-{family}",
            )
            for family in FAMILIES
        ),
    )


def any_state() -> dict[str, bool]:
    draining = {"ready": False, "serving": True, "terminating": True}
    gone = {"ready": False, "serving": False, "terminating": True}
    return random.choice([{"ready": True}, {"ready": True}, draining, gone])


def connect(testbed: Testbed) -> None:
    """Connect from somewhere to some address of some Service, whatever comes of it."""
    lab, node = testbed.lab, testbed.node
    clients: list[Namespace] = [lab.client, node, *node.pods.values()]
    name, family = random.choice(NAMES), random.choice(FAMILIES)
    targets = [(vip(name, family), 80), (node.address(family), node_port(name))]
    if name == "web":
        targets += [(EXTERNAL[family], 80), (BALANCER[family], 80)]
    protocol: Literal["tcp", "udp"] = random.choice(("tcp", "udp"))
    tally(random.choice(clients), *random.choice(targets), protocol, count=3, timeout=0.2)


@pytest.mark.parametrize("layout", ["nftables", "iptables"])
def test_the_real_kube_proxy_does_what_bpfsvc_would_do(
    layout: Literal["nftables", "iptables"], tmp_path: Path
) -> None:
    random.seed(1)
    binary = programs() / "kube-proxy"
    with built_testbed(layout="routed", served=True) as testbed:
        cluster, node = testbed.cluster, testbed.node
        for node_ in testbed.lab.nodes:
            node_.serve(8080)
        cluster.put("cidrs", service_cidr("10.96.0.0/16", "fd96::/108"))
        for name in NAMES:
            cluster.put(name, made(name))
            put_endpoints(testbed, name, lambda: {"ready": True})
        for network in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            testbed.lab.client.route(network, via=node)
        url = cluster.api.url(str(testbed.lab.client.addresses[4]))
        pods: Any = ",".join(str(network) for network in testbed.lab.cluster_cidrs.values())
        with RealKubeProxy(node, binary, url, layout, pods, tmp_path / "log") as proxy:
            proxy.ready()
            words = ["--shadow", "--shadow-tolerance=5s", f"--proxy-mode={layout}"]
            agent = cluster.launch(node, options=words)
            agent.expect("shadow mode: comparing", 120)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                put_endpoints(testbed, random.choice(NAMES), any_state)
                for _ in range(5):
                    connect(testbed)
                # Its rules follow in a second or in five, as the machine is fast.
                wait(proxy.has_caught_up, "kube-proxy has the last change", 30)
            put_endpoints(testbed, "web", lambda: {"ready": True})

            def report() -> dict[str, Any]:
                page: dict[str, Any] = json.loads(
                    http_request(node, "127.0.0.1", 10276, "/bpfsvc/shadow")[1]
                )
                return page

            seen = report()["connections"]
            tally(node, vip("web", 4), 80, count=5)
            wait(lambda: report()["connections"] >= seen + 5, "the last are compared")
            assert report()["services"] == [], agent.log
            assert agent.end() == 0
            assert report_number(agent.log) > 100


def report_number(log: str) -> int:
    """Return how many connections were compared in all."""
    line = next(logged for logged in log.splitlines() if "shadow mode ends: " in logged)
    return int(line.partition("ends: ")[2].split()[0])
