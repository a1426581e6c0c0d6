"""Well-known example objects of the Kubernetes documentation, tested with real packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab.dial import ask, tally
from bpfsvc.devtools.lab.objects import port, slices
from tests.lab.testbed import Testbed, built_testbed, host

NGINX = """\
apiVersion: v1
kind: Service
metadata: {name: nginx-service, namespace: default}
spec: {type: NodePort, clusterIP: 10.107.33.105, selector: {app: nginx}, \
ports: [{protocol: TCP, port: 80, targetPort: 80, nodePort: 30007}]}
"""

SVC_A = """\
apiVersion: v1
kind: Endpoints
metadata: {name: svc-a, namespace: default}
subsets: [{addresses: [{ip: 101.76.9.141, targetRef: {kind: Pod, name: pod-a, \
namespace: default}}], ports: [{name: http, port: 80, protocol: TCP}]}]
---
apiVersion: v1
kind: Service
metadata: {name: svc-a, namespace: default}
spec: {clusterIP: 10.233.56.44, clusterIPs: [10.233.56.44], internalTrafficPolicy: Cluster, \
ipFamilies: [IPv4], ipFamilyPolicy: SingleStack,
       ports: [{name: http, port: 80, protocol: TCP, targetPort: 80}], selector: {app: pod-a}, \
sessionAffinity: None, type: ClusterIP}
"""

HOSTNAMES = """\
apiVersion: v1
kind: Service
metadata: {name: hostnames, namespace: default}
spec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.111.231.44, \
selector: {app: hostnames},
       ports: [{name: http, nodePort: 30000, targetPort: 9376, port: 80, protocol: TCP}]}
"""

OUTER = """\
apiVersion: v1
kind: Service
metadata: {name: my-service, namespace: default}
spec: {clusterIP: 10.96.14.2, selector: {app: MyApp}, externalIPs: [80.11.12.10], \
ports: [{name: http, protocol: TCP, port: 80, targetPort: 9376}]}
---
apiVersion: v1
kind: Service
metadata: {name: my-database, namespace: prod}
spec: {type: ExternalName, externalName: my.database.example.com, ports: [{port: 12345}]}
"""


@pytest.fixture(scope="module")
def classic() -> Iterator[Testbed]:
    """A bridged lab with the pods these objects are about, and the objects."""
    with built_testbed(layout="bridge", overlay="vxlan") as testbed:
        lab, cluster = testbed
        for node, address in zip(lab.nodes, ("10.244.1.5", "10.244.2.4"), strict=True):
            node.add_pod(f"nginx-{node.number}", [address]).serve(80)
            node.add_pod(f"hostnames-{node.number}").serve(9376)
        lab.nodes[1].add_pod("pod-a", ["101.76.9.141"]).serve(80)
        lab.client.route("80.11.12.10", via=lab.nodes[0])
        for name, text in (
            ("nginx", NGINX),
            ("svc-a", SVC_A),
            ("hostnames", HOSTNAMES),
            ("outer", OUTER),
        ):
            cluster.put_text(f"{name}.yaml", text)
        named = {pod.name: pod for pod in lab.pods}
        http = [port(9376, "http")]
        cluster.put(
            "slices",
            *slices("nginx-service", [named["nginx-1"], named["nginx-2"]], [port(80)]),
            *slices("hostnames", [named["hostnames-1"], named["hostnames-2"]], http),
            *slices("my-service", [named["hostnames-1"], named["hostnames-2"]], http),
        )
        cluster.start()
        yield testbed


def test_nginx_service_shares_half_and_half(classic: Testbed) -> None:
    """10.107.33.105:80 and every node's 30007 reach 10.244.1.5:80 and 10.244.2.4:80 equally."""
    ways = [(classic.pod, "10.107.33.105", 80), (classic.node, "10.107.33.105", 80)]
    ways += [(classic.client, node.address(), 30007) for node in classic.lab.nodes]
    for place, address, number in ways:
        counts = tally(place, address, number, count=300)
        assert set(counts) == {"nginx-1", "nginx-2"}
        # Binomial with 300 trials: within 5.8 standard deviations of the mean.
        assert 100 <= counts["nginx-1"] <= 200
    served = {ask(classic.pod, "10.107.33.105", 80).local for _ in range(40)}
    assert served == {"10.244.1.5:80", "10.244.2.4:80"}


def test_classic_endpoints_are_served(classic: Testbed) -> None:
    """svc-a: 10.233.56.44:80 reaches 101.76.9.141:80, named by a v1 Endpoints object."""
    for client in (classic.pod, classic.lab.pods[3], classic.node):
        answer = ask(client, "10.233.56.44", 80)
        assert (answer.pod, answer.local) == ("pod-a", "101.76.9.141:80")
        assert answer.remote == "10.233.56.44:80"


def test_hostnames_keep_the_client_address_with_local_and_masquerade_without(
    classic: Testbed,
) -> None:
    """With Local, each node answers with its own pod, which sees the client; without, neither."""
    client = classic.lab.client.address()
    for node in classic.lab.nodes:
        assert tally(classic.client, node.address(), 30000, count=30) == {
            f"hostnames-{node.number}": 30
        }
        assert host(ask(classic.client, node.address(), 30000).peer) == client
    classic.cluster.put_text(
        "hostnames.yaml", HOSTNAMES.replace("externalTrafficPolicy: Local, ", "")
    )
    classic.cluster.settle()
    try:
        for node in classic.lab.nodes:
            counts = tally(classic.client, node.address(), 30000, count=60)
            assert set(counts) == {"hostnames-1", "hostnames-2"}
            assert host(ask(classic.client, node.address(), 30000).peer) != client
    finally:
        classic.cluster.put_text("hostnames.yaml", HOSTNAMES)
        classic.cluster.settle()
    assert set(tally(classic.pod, "10.111.231.44", 80)) == {"hostnames-1", "hostnames-2"}


def test_my_service_answers_on_its_external_ip(classic: Testbed) -> None:
    """80.11.12.10:80 and 10.96.14.2:80 reach port 9376 of the pods, from pods and from outside."""
    for place, address in (
        (classic.pod, "10.96.14.2"),
        (classic.pod, "80.11.12.10"),
        (classic.node, "80.11.12.10"),
        (classic.client, "80.11.12.10"),
    ):
        assert set(tally(place, address, 80, count=40)) == {"hostnames-1", "hostnames-2"}


def test_an_external_name_service_has_no_entries(classic: Testbed) -> None:
    """my-database has no entries, and there is no error."""
    shown = classic.cluster.command(classic.node, "maps", "dump", "services", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert "my-service" in shown.stdout
    assert "my-database" not in shown.stdout
    for agent in classic.cluster.agents.values():
        assert "WARNING" not in agent.log
        assert "ERROR" not in agent.log
