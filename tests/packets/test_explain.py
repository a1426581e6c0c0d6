"""What ``bpfsvc explain`` answers: what a real kube-proxy does, found by the real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.lab import sandbox
from tests.specification.cases import FORMAT, SAMPLE, expected, flows, read_cases
from tests.specification.generation import random_cases
from tests.specification.objects import Raw

SEED = 20261121
OBJECTS = Path(__file__).parent / "explained"
NODE = ("--manifests", str(OBJECTS), "--hostname-override", "node-1")
PODS = ("--cluster-cidr", "10.244.0.0/16")

Explain = Callable[..., subprocess.CompletedProcess[str]]
Answers = dict[str, dict[str, Any]]


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    sandbox.require()
    kept = ["--cache", str(sandbox.ROOT / "explain")]
    command = [sys.executable, "-m", "bpfsvc", "explain", *kept, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answers(path: Path) -> Answers:
    """Answer a file of cases; give the answers by the ids of their flows."""
    result = explain("--cases", str(path))
    assert result.returncode == 0, result.stderr
    return {answer["id"]: answer for answer in map(json.loads, result.stdout.splitlines())}


@pytest.fixture(scope="module")
def sampled() -> Answers:
    """Answers to the whole sample."""
    return answers(SAMPLE)


def judged(answer: dict[str, Any]) -> dict[str, Any]:
    """Take from an answer what a case expects of it."""
    names = ("verdict", "endpoints", "masquerade", "masquerade_endpoints")
    return {name: answer[name] for name in names if name in answer}


@pytest.mark.parametrize(
    "flow", [pytest.param(flow, id=flow["id"]) for _, flow in flows(read_cases())]
)
def test_the_answer_is_what_kube_proxy_does(sampled: Answers, flow: Raw) -> None:
    assert judged(sampled[flow["id"]]) == expected(flow)


def is_on_this_node(case: Raw, flow: Raw) -> bool:
    """Whether a packet may never leave the node, so that no masquerade of it shows on a wire."""
    return any(
        endpoint.rpartition(":")[0].strip("[]") in case["node"]["ips"]
        for endpoint in flow["expect"]["endpoints"]
    )


@pytest.mark.slow
def test_random_clusters_are_answered_as_the_specification_says(tmp_path: Path) -> None:
    """In under a minute for 160 of them, compiling once."""
    cases = random_cases(160, SEED)
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"format": FORMAT, "cases": cases}))
    found = answers(path)
    asked = [(case, flow) for case in cases for flow in case["flows"]]
    assert len(asked) == len(found) > 300
    for case, flow in asked:
        if not is_on_this_node(case, flow):
            assert judged(found[flow["id"]]) == flow["expect"], flow


def text(*question: str) -> list[str]:
    """Ask about the objects of this test; give the lines of the answer."""
    result = explain(*NODE, *PODS, *question)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_each_rule_is_told_and_why_other_endpoints_are_not_eligible() -> None:
    assert text("--from", "external", "203.0.113.9", "TCP", "198.51.100.7:80") == [
        "dnat  198.51.100.7:80/TCP of default/web",
        "  -> 10.244.1.5:8080",
        "  because the frontend is a load balancer's address of default/web, port http (80)",
        "  because the client is neither a pod of this node nor the node itself",
        "  because loadBalancerSourceRanges (203.0.113.0/24) let 203.0.113.9 in",
        "  because externalTrafficPolicy Local: only endpoints on this node, client address kept",
        "  because not 10.244.2.5:8080: it is on node-2",
        "  because not 10.244.2.6:8080: it is not ready",
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
            "the cluster IP is in use, but no port of its Service is this one",
        ),
        (
            ("--from", "pod", "10.244.1.9", "TCP", "10.96.0.99:80"),
            "the address lies in a ServiceCIDR, but no Service has it",
        ),
        (
            ("--from", "pod", "10.244.1.9", "TCP", "192.168.50.11:30080"),
            "externalTrafficPolicy Local, but the client is a pod of this node:"
            " every endpoint, not masqueraded (short-circuit)",
        ),
    ],
    ids=["out of range", "undefined port", "unallocated", "short-circuit"],
)
def test_the_reason_is_told(question: tuple[str, ...], answer: str) -> None:
    assert f"  because {answer}" in text(*question)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "what is asked is not complete"),
        (("--from", "pod", "10.0.0.1", "ICMP", "10.96.0.10:80"), "'ICMP' is no protocol"),
        (("--from", "pod", "10.0.0", "TCP", "10.96.0.10:80"), "'10.0.0' is not an IP address"),
        (("--from", "pod", "fd00::1", "TCP", "10.96.0.10:80"), "cannot send to"),
        (("--from", "pod", "10.0.0.1", "TCP", "10.96.0.10"), "is not an address and a port"),
        (("--from", "pod", "10.0.0.1", "TCP", "10.96.0.10:0"), "0 is no port"),
        (("--cases", "/nonexistent"), "/nonexistent cannot be read"),
        (("--cases", str(OBJECTS / "cluster.yaml")), "is not JSON"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(
    arguments: tuple[str, ...], complaint: str
) -> None:
    result = explain(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert complaint in error
    assert hint.startswith("Hint: ")
