"""``bpfsvc explain`` answers what a real kube-proxy does, by running the real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab import sandbox
from tests.specification.cases import FORMAT, SAMPLE, expected, flows, read_cases
from tests.specification.generation import random_cases
from tests.specification.objects import Raw

SEED = 20261121
OBJECTS = Path(__file__).parent / "explained"
NODE = ("--manifests", str(OBJECTS), "--hostname-override", "node-1")
PODS = ("--cluster-cidr", "10.244.0.0/16")

Answers = dict[str, dict[str, Any]]


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    sandbox.require()
    kept = ["--cache", str(sandbox.COMPILED)]
    command = [sys.executable, "-m", "bpfsvc", "explain", *kept, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answers(path: Path) -> Answers:
    """Run the command on a file of cases; return the answers by the ids of their flows."""
    result = explain("--cases", str(path))
    assert result.returncode == 0, result.stderr
    return {answer["id"]: answer for answer in map(json.loads, result.stdout.splitlines())}


@pytest.fixture(scope="module")
def sampled() -> Answers:
    """Answers to the whole sample."""
    return answers(SAMPLE)


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an answer that cases have expectations for."""
    names = ("verdict", "endpoints", "masquerade", "masquerade_endpoints")
    return {name: answer[name] for name in names if name in answer}


@pytest.mark.parametrize(
    "flow", [pytest.param(flow, id=flow["id"]) for _, flow in flows(read_cases())]
)
def test_the_answer_is_what_kube_proxy_does(sampled: Answers, flow: Raw) -> None:
    assert comparable(sampled[flow["id"]]) == expected(flow)


@pytest.mark.slow
def test_random_clusters_are_answered_as_the_specification_says(tmp_path: Path) -> None:
    """160 of them take less than a minute; the programs are compiled once."""
    cases = random_cases(160, SEED)
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"format": FORMAT, "cases": cases}))
    by_id = answers(path)
    asked = [(case, flow) for case in cases for flow in case["flows"]]
    assert len(asked) == len(by_id) > 300
    for _, flow in asked:
        assert comparable(by_id[flow["id"]]) == flow["expect"], flow


def text(*question: str) -> list[str]:
    """Run the command on the objects of this test; return the lines of the answer."""
    result = explain(*NODE, *PODS, *question)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_each_rule_is_shown_and_why_other_endpoints_are_not_eligible() -> None:
    assert text("--from", "external", "203.0.113.9", "TCP", "198.51.100.7:80") == [
        "dnat  198.51.100.7:80/TCP of default/web",
        "  -> 10.244.1.5:8080",
        "  because the frontend is a load balancer's address of default/web, port http (80)",
        "  because default/late names it too, without effect: that Service is older",
        "  because the client is neither a pod of this node nor the node itself",
        "  because loadBalancerSourceRanges (203.0.113.0/24) contain 203.0.113.9: allowed",
        "  because externalTrafficPolicy Local: only endpoints on this node",
        "  because endpoints see the address of the client",
        "  because 10.244.2.5:8080 is not eligible: it is on node-2",
        "  because 10.244.2.6:8080 is not eligible: it is not ready",
    ]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            ("--from", "external", "203.1.113.9", "TCP", "198.51.100.7:80"),
            "loadBalancerSourceRanges (203.0.113.0/24) do not contain 203.1.113.9: dropped",
        ),
        (
            ("--from", "pod", "10.244.1.9", "UDP", "10.96.0.10:53"),
            "the cluster IP belongs to this Service, but the Service has no such port",
        ),
        (
            ("--from", "pod", "10.244.1.9", "TCP", "10.96.0.99:80"),
            "the address lies in a ServiceCIDR, but no Service has it",
        ),
        (
            ("--from", "pod", "10.244.1.9", "TCP", "192.168.50.11:30080"),
            "externalTrafficPolicy Local, but the client is a pod of this node:"
            " every endpoint (short-circuit)",
        ),
    ],
    ids=["out of range", "undefined port", "unallocated", "short-circuit"],
)
def test_the_reason_is_shown(question: tuple[str, ...], answer: str) -> None:
    assert f"  because {answer}" in text(*question)


def test_an_endpoint_that_is_the_node_itself_sees_the_client() -> None:
    """What is delivered here does not leave the node, which is where sources are replaced."""
    assert text("--from", "external", "203.0.113.9", "TCP", "192.168.50.11:30081") == [
        "dnat  nodeport:30081/TCP of prod/shop",
        "  -> 10.244.1.5:8080 (masqueraded)",
        "  -> 192.168.50.11:8080",
        "  because the frontend is the node port of prod/shop, port http (80)",
        "  because the client is neither a pod of this node nor the node itself",
        "  because externalTrafficPolicy Cluster: every endpoint",
        "  because external traffic is masqueraded, so that its answers pass this node",
        "  because 192.168.50.11:8080 is this node: the packet does not leave it, so this endpoint"
        " sees the address of the client",
        "  because scheduler random: one of 2 endpoints at random",
    ]


def test_a_node_port_has_the_name_that_maps_dump_shows() -> None:
    (line, *_) = text("--from", "external", "2001:db8::9", "TCP", "[fd00:50::11]:30082")
    assert line == "reject  nodeport6:30082/TCP of prod/idle"


def test_an_endpoint_that_is_the_client_is_the_only_masqueraded_one() -> None:
    assert text("--from", "pod", "10.244.1.5", "TCP", "10.96.0.20:80") == [
        "dnat  10.96.0.20:80/TCP of prod/shop",
        "  -> 10.244.1.5:8080 (masqueraded)",
        "  -> 192.168.50.11:8080",
        "  because the frontend is the cluster IP of prod/shop, port http (80)",
        "  because the client is a pod of this node",
        "  because internalTrafficPolicy Cluster: every endpoint",
        "  because 10.244.1.5:8080 is the client itself: masqueraded (hairpin)",
        "  because 192.168.50.11:8080 is this node: the packet does not leave it, so this endpoint"
        " sees the address of the client",
        "  because scheduler random: one of 2 endpoints at random",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "the question is incomplete"),
        (("--from", "pod", "10.0.0.1", "ICMP", "10.96.0.10:80"), "'ICMP' is not a protocol"),
        (("--from", "pod", "10.0.0", "TCP", "10.96.0.10:80"), "'10.0.0' is not an IP address"),
        (("--from", "pod", "fd00::1", "TCP", "10.96.0.10:80"), "cannot send to"),
        (("--from", "pod", "10.0.0.1", "TCP", "10.96.0.10"), "is not an address and a port"),
        (("--from", "pod", "10.0.0.1", "TCP", "10.96.0.10:0"), "is not an address and a port"),
        (("--cases", "/nonexistent"), "/nonexistent cannot be read"),
        (("--cases", str(OBJECTS / "cluster.yaml")), "is not JSON"),
    ],
)
def test_a_wrong_question_is_an_error_of_one_line(
    arguments: tuple[str, ...], complaint: str
) -> None:
    result = explain(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert complaint in error
    assert hint.startswith("Hint: ")
