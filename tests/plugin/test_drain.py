"""What a drain takes from Services."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugin.conftest import Cluster, named, node, pod


def point(on: str, target: str = "", **conditions: bool) -> dict[str, Any]:
    ref = {"targetRef": {"kind": "Pod", "namespace": "shop", "name": target}} if target else {}
    return {"addresses": ["10.0.0.1"], "nodeName": on, "conditions": conditions, **ref}


class Shop:
    """Nodes n1 and n2 in zone a, n3 in zone b; n1 is to be drained."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.state["nodes"] = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
        cluster.state |= {"services": [], "endpointslices": []}

    def add(self, name: str, *points: dict[str, Any], family: str = "IPv4", **spec: Any) -> None:
        """Add a Service and a slice of it; pods of its endpoints on n1 run there."""
        state = self.cluster.state
        if all(item["metadata"]["name"] != name for item in state["services"]):
            state["services"].append(named(name, "shop", spec=spec))
        ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
        label = {"kubernetes.io/service-name": name}
        state["endpointslices"].append(
            named(
                f"{name}-{len(state['endpointslices'])}",
                "shop",
                labels=label,
                addressType=family,
                ports=ports,
                endpoints=list(points),
            )
        )

    def pod(self, name: str, **fields: Any) -> None:
        """Add a pod on n1."""
        self.cluster.state["pods"].append(pod(name, "n1", **fields))

    def losses(self) -> tuple[int, list[tuple[str, str, int]]]:
        """Return the exit status, and what is lost, by which Service, of how many endpoints."""
        done = self.cluster.run("simulate-drain", "n1", "-o", "json")
        assert done.err == ""
        losses = done.json["losses"]
        return done.status, [(row["loses"], row["service"], row["endpoints"]) for row in losses]


@pytest.fixture
def shop(cluster: Cluster) -> Shop:
    return Shop(cluster)


def test_a_service_that_runs_on_the_node_alone_loses_its_last_endpoint(shop: Shop) -> None:
    shop.pod("web-1")
    shop.pod("web-2")
    shop.add("web", point("n1", "web-1"), point("n1", "web-2", ready=True))
    shop.add("web", point("n1", "web-1"), family="IPv6")
    assert shop.losses() == (1, [("endpoint", "shop/web", 2)])


def test_a_port_without_a_name_is_shown_by_the_number_that_clients_use(shop: Shop) -> None:
    shop.pod("web-1")
    shop.add("web", point("n1", "web-1"), ports=[{"port": 8000, "targetPort": 80}])
    shop.cluster.state["endpointslices"][0]["ports"][0]["name"] = ""
    done = shop.cluster.run("simulate-drain", "n1", "-o", "json")
    assert [row["port"] for row in done.json["losses"]] == ["8000/TCP"]


def test_endpoints_elsewhere_count_only_if_they_serve(shop: Shop) -> None:
    shop.pod("web-1")
    shop.add("web", point("n1", "web-1"), point("n2", "web-2", ready=False))
    shop.add("kept", point("n1", "web-1"), point("n2", "web-2"), point("n3", "web-3"))
    assert shop.losses() == (1, [("endpoint", "shop/web", 1)])


def test_pods_of_daemon_sets_static_pods_and_endpoints_without_a_pod_stay(shop: Shop) -> None:
    shop.pod("agent", owner="DaemonSet")
    shop.pod("static", annotations={"kubernetes.io/config.mirror": "abc"})
    shop.pod("ended", status={"phase": "Succeeded"})
    for name, target in (("agents", "agent"), ("statics", "static"), ("outside", "")):
        shop.add(name, point("n1", target))
    assert shop.losses() == (0, [])
    shown = shop.cluster.run("simulate-drain", "n1").out
    assert shown.splitlines() == [
        "n1 (a): 0 pods leave, 2 stay (DaemonSets, static pods)",
        "no Service loses its last endpoint",
    ]


def test_the_last_local_endpoint_is_named_with_what_its_policy_does(shop: Shop) -> None:
    shop.pod("web-1")
    points = point("n1", "web-1"), point("n2", "web-2")
    shop.add("inside", *points, internalTrafficPolicy="Local")
    shop.add("outside", *points, externalTrafficPolicy="Local", healthCheckNodePort=31000)
    shop.add("spread", *points, externalTrafficPolicy="Cluster")
    local = "local endpoint"
    assert shop.losses() == (0, [(local, "shop/inside", 1), (local, "shop/outside", 1)])
    shown = shop.cluster.run("simulate-drain", "n1").out
    assert "pods and processes on n1 are dropped" in shown
    assert "clients from outside are dropped at n1; its health check at port 31000 fails" in shown


def test_the_last_endpoint_of_a_zone_is_named(shop: Shop) -> None:
    shop.pod("web-1")
    points = point("n1", "web-1"), point("n3", "web-3")
    shop.add("web", *points, trafficDistribution="PreferSameZone")
    shop.add("more", *points, point("n2", "web-2"))
    assert shop.losses() == (0, [("endpoint in the zone", "shop/web", 1)])
    assert (
        "clients in a use endpoints of other zones" in shop.cluster.run("simulate-drain", "n1").out
    )


def test_pods_without_a_controller_do_not_come_back(shop: Shop) -> None:
    shop.pod("alone", owner="")
    shown = shop.cluster.run("simulate-drain", "n1").out
    assert "without a controller, so gone for good: shop/alone" in shown


def test_a_node_that_is_not_there_is_one_line(shop: Shop) -> None:
    done = shop.cluster.run("simulate-drain", "n9")
    assert done.status == 1
    assert done.err == "Error: there is no node n9\nHint: the nodes are: n1, n2, n3\n"
