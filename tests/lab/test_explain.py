"""``bpfsvc explain`` reads the maps of a running agent and changes nothing in them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import API, EMPTY, LOCAL, WEB, Testbed, host, put_pods, running_testbed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Two nodes with agents, and the Services of the testbed."""
    with running_testbed(layout="routed") as made:
        put_pods(made)
        yield made


def explained(testbed: Testbed, *question: str, on: LabNode | None = None) -> dict[str, Any]:
    """Run the command on a node, by default the first; return its answer."""
    done = testbed.cluster.command(on or testbed.node, "explain", "-o", "json", *question)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_explain_answers_for_a_pod_of_a_running_agent(testbed: Testbed) -> None:
    client = testbed.pod
    answer = explained(testbed, "--from", "pod", client.address(4), "TCP", f"{WEB.vip(4)}:80")
    backends = sorted(f"{lab_pod.address(4)}:8080" for lab_pod in testbed.lab.pods)
    assert (answer["verdict"], answer["endpoints"]) == ("dnat", backends)
    assert answer["frontend"] == f"{WEB.vip(4)}:80/TCP"
    assert answer["masquerade_endpoints"] == [f"{client.address(4)}:8080"]
    assert answer["reasons"] == [
        "the frontend is the cluster IP of default/web, port web (80)",
        "the client is a pod of this node",
        "internalTrafficPolicy Cluster: every endpoint",
        f"{client.address(4)}:8080 is the client itself: masqueraded (hairpin)",
        "all others see the address of the client",
        f"scheduler random: one of {len(backends)} endpoints at random",
    ]


def test_endpoints_that_are_not_eligible_are_named_with_the_reason(testbed: Testbed) -> None:
    """The objects are those of the running agent; no manifests are given."""
    other = testbed.lab.nodes[1]
    question = ("--from", "external", "203.0.113.9", "TCP", f"{other.address(4)}:{LOCAL.node_port}")
    answer = explained(testbed, *question, on=other)
    assert (answer["verdict"], answer["endpoints"]) == ("drop", [])
    assert answer["reasons"] == [
        "the frontend is the node port of default/local, port web (80)",
        "the client is neither a pod of this node nor the node itself",
        "externalTrafficPolicy Local: only endpoints on this node",
        "no endpoint on this node is usable, but others are: dropped",
        *(
            f"{lab_pod.address(4)}:8080 is not eligible: it is on {testbed.node.name}"
            for lab_pod in testbed.node.pods.values()
        ),
    ]


def test_names_of_services_and_pods_are_known(testbed: Testbed) -> None:
    """The same question by names and by addresses has one answer."""
    client = testbed.pod
    by_address = explained(testbed, "--from", "pod", client.address(4), "TCP", f"{WEB.vip(4)}:80")
    for port in ("80", "web"):
        named = explained(testbed, f"default/{client.name}", "TCP", f"default/{WEB.name}:{port}")
        assert named == by_address
    backend = testbed.lab.pods[-1]
    direct = explained(testbed, f"default/{client.name}", "TCP", f"default/{backend.name}:8080")
    assert direct["verdict"] == "none"


def test_without_an_answer_of_the_agent_the_entries_are_all_that_is_known(
    testbed: Testbed,
) -> None:
    agent = testbed.agent
    agent.process.send_signal(signal.SIGSTOP)
    try:
        question = ("--from", "pod", testbed.pod.address(4), "TCP", f"{EMPTY.vip(4)}:80")
        answer = explained(testbed, *question)
        done = testbed.cluster.command(
            testbed.node, "explain", "--from", "external", "203.0.113.9", "TCP", "default/web:80"
        )
    finally:
        agent.process.send_signal(signal.SIGCONT)
    assert answer["verdict"] == "reject"
    assert answer["reasons"] == [
        "the client is a pod of this node",
        "no endpoint is usable anywhere",
        "why other endpoints are not eligible is not known: the agent does not answer within 10 s",
    ]
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: the agent does not answer within 10 s",
        "Hint: ask by addresses, or about --manifests",
    ]


def test_a_service_without_endpoints_is_rejected(testbed: Testbed) -> None:
    client = testbed.pod
    answer = explained(testbed, "--from", "pod", client.address(4), "TCP", f"{EMPTY.vip(4)}:80")
    assert (answer["verdict"], answer["endpoints"]) == ("reject", [])
    assert "there are no endpoints" in answer["reasons"]


def test_what_was_refused_just_now_is_told_beside_the_answer(testbed: Testbed) -> None:
    client = testbed.pod
    question = ("--from", "pod", client.address(4), "TCP", f"{EMPTY.vip(4)}:80")
    with pytest.raises(ConnectionRefusedError):
        ask(client, EMPTY.vip(4), 80)

    def lately() -> list[str]:
        told: list[str] = explained(testbed, *question).get("lately", [])
        return told

    wait(lambda: bool(lately()), "the refusal is told", 30)
    (text,) = lately()
    assert text.startswith("first packets to this Service: ")
    assert " rejected: no endpoints, in the last " in text
    served = ("--from", "pod", client.address(4), "TCP", f"{WEB.vip(4)}:80")
    assert "lately" not in explained(testbed, *served)


def test_nothing_is_written(testbed: Testbed) -> None:
    """It makes no connection entry and changes no counter."""
    names = ("connections", "counters", "backends")
    before = testbed.cluster.command(testbed.node, "maps", "dump", *names).stdout
    explained(testbed, "--from", "external", "203.0.113.9", "TCP", f"{WEB.vip(4)}:80")
    assert testbed.cluster.command(testbed.node, "maps", "dump", *names).stdout == before


def test_an_endpoint_that_is_the_asked_node_sees_what_explain_says(testbed: Testbed) -> None:
    """Half of the answers come from here, where the client is seen, half from the other node.

    The last test of this module, as its connections are in the maps for a while.
    """
    node, client = testbed.node, testbed.client
    address = f"{node.address(4)}:{API.node_port}"
    own = str(testbed.lab.client.addresses[4])
    answer = explained(testbed, "--from", "external", own, "TCP", address)
    other = f"{testbed.lab.nodes[1].address(4)}:6443"
    assert answer["endpoints"] == sorted([f"{node.address(4)}:6443", other])
    assert (answer["masquerade"], answer["masquerade_endpoints"]) == (False, [other])
    seen: dict[str, str] = {}
    while len(seen) < 2:
        reply = ask(client, node.address(4), API.node_port, "tcp")
        seen[reply.pod] = host(reply.peer)
    assert seen == {node.name: own, testbed.lab.nodes[1].name: node.address(4)}
