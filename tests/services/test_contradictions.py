"""Fields of a Service that contradict each other, and those beside them that do not."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.services.contradictions import contradictions

OVERLOAD = {"bpfsvc.io/zone-overload": "1.5"}
TOPOLOGY = {"service.kubernetes.io/topology-mode": "Auto"}
LOCAL = {"externalTrafficPolicy": "Local"}


def said(annotations: dict[str, str] | None = None, **spec: Any) -> list[str]:
    """Return where a Service contradicts itself, and how, as ``field: text``."""
    service = {"metadata": {"annotations": annotations}, "spec": spec}
    return [f"{path[-1]}: {text}" for path, text in contradictions(service)]


@pytest.mark.parametrize(
    ("annotations", "spec", "text"),
    [
        (OVERLOAD, {}, "zone-overload: without effect: nothing keeps clients near"),
        (OVERLOAD, {"trafficDistribution": "PreferClose"}, ""),
        (OVERLOAD | TOPOLOGY, {}, ""),
        (OVERLOAD, {"internalTrafficPolicy": "Local"}, "zone-overload: without effect for clients"),
        (None, LOCAL, "externalTrafficPolicy: without effect: type ClusterIP has no outside"),
        (None, LOCAL | {"externalIPs": ["192.0.2.1"]}, ""),
        (None, LOCAL | {"type": "NodePort"}, ""),
        (None, LOCAL | {"type": "LoadBalancer"}, ""),
        (None, LOCAL | {"type": "LoadBalancer", "healthCheckNodePort": 30000}, ""),
        (
            None,
            LOCAL | {"type": "NodePort", "healthCheckNodePort": 30000},
            "healthCheckNodePort: without effect: it needs type LoadBalancer",
        ),
        (
            None,
            {"type": "LoadBalancer", "healthCheckNodePort": 30000},
            "healthCheckNodePort: without effect: it needs type LoadBalancer",
        ),
        (None, {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]}, ""),
        (
            None,
            {"loadBalancerSourceRanges": ["10.0.0.0/8"]},
            "loadBalancerSourceRanges: without effect for type ClusterIP",
        ),
    ],
)
def test_a_field_without_effect_is_named(
    annotations: dict[str, str] | None, spec: dict[str, Any], text: str
) -> None:
    (fault,) = said(annotations, **spec) or [""]
    assert text in fault if text else not fault


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"name": "a", "port": 80}, {"name": "b", "port": 81}, ""),
        ({"name": "a", "port": 80}, {"name": "b", "port": 80, "protocol": "UDP"}, ""),
        (
            {"name": "a", "port": 80},
            {"name": "b", "port": 80, "protocol": "TCP"},
            "port: 80/TCP is there already",
        ),
        (
            {"name": "a", "port": 80},
            {"name": "a", "port": 81},
            "name: the name 'a' is used already: each port needs a name of its own",
        ),
        (
            {"port": 80},
            {"name": "", "port": 81},
            "name: a port without a name is there already: each port needs a name of its own",
        ),
    ],
)
def test_ports_have_names_and_numbers_of_their_own(
    first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    assert said(ports=[first, second]) == ([text] if text else [])


@pytest.mark.parametrize("kind", ["", "ClusterIP", "NodePort", "LoadBalancer"])
def test_a_cluster_ip_has_no_node_ports(kind: str) -> None:
    text = "nodePort: without effect: type ClusterIP has no node ports"
    ports = [{"port": 80, "nodePort": 30000}]
    assert said(type=kind, ports=ports) == ([text] if kind in ("", "ClusterIP") else [])
    assert said(type=kind, ports=[{"port": 80}]) == []
