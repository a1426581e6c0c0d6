"""The page of a node beside a running agent, with real Services and traffic; without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import EMPTY, ONE, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

PORT = 10286
NAME, EMPTY_NAME = f"default/{WEB.name}:web", f"default/{EMPTY.name}:web"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with built_testbed(layout="routed", nodes=1) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("empty", *objects(EMPTY, []))
        made.cluster.put("one", *objects(ONE[0], made.lab.pods[:1]))
        made.cluster.start()
        yield made


def get(testbed: Testbed, name: str, /, **query: str) -> dict[str, Any]:
    status, content = http_request(
        testbed.node, "127.0.0.1", PORT, f"/api/{name}?{urlencode(query)}", timeout=30
    )
    answer: dict[str, Any] = json.loads(content)
    assert status == 200, answer
    return answer


def fails(client: Namespace, address: str, number: int) -> None:
    with pytest.raises(OSError, match=r"refused"):
        ask(client, address, number)


def test_the_status_is_that_of_the_command(testbed: Testbed) -> None:
    answer = get(testbed, "status")
    assert (answer["well"], answer["head"]) == (True, "healthy")
    assert answer["node"] == testbed.node.name
    assert answer["lines"]["services"].startswith("3, with")


def test_a_search_by_an_address_finds_the_service(testbed: Testbed) -> None:
    answer = get(testbed, "services", search=f"{WEB.vip(4)}:80/TCP")
    assert [row["service"] for row in answer["rows"]] == [NAME]
    assert answer["rows"][0]["ready"] == len(testbed.lab.pods)


def test_the_shares_are_what_the_backends_got(testbed: Testbed) -> None:
    """Chance may leave out a backend for long, so the client asks until all have been asked."""

    def counted() -> bool:
        ask(testbed.client, testbed.node.address(4), WEB.node_port)
        detail = get(testbed, "service", name=NAME, protocol="TCP", family="IPv4")
        counts = [backend["counts"]["connections"] for backend in detail["backends"]]
        return sum(counts) >= 12 and all(counts)

    wait(counted, "the connections are counted", 30)


def test_a_refused_connection_is_an_event_a_failure_and_a_drop(testbed: Testbed) -> None:
    get(testbed, "events")  # from now on the agent is asked

    def refused() -> bool:
        fails(testbed.client, testbed.node.address(4), EMPTY.node_port)
        events = get(testbed, "events", service=f"default/{EMPTY.name}", verdict="refused")
        return any(event["service"] == EMPTY_NAME for event in events["events"])

    wait(refused, "the refusal is among the events", 30)

    def remembered() -> bool:
        history = get(testbed, "history", service=f"default/{EMPTY.name}")
        return any(failure["service"] == EMPTY_NAME for failure in history["failures"])

    wait(remembered, "the refusal is in the history", 10)

    def named() -> bool:
        # The agent counts from its second look on, so the first refusals may not be in its counts.
        fails(testbed.client, testbed.node.address(4), EMPTY.node_port)
        return any(row["service"] == EMPTY_NAME for row in get(testbed, "status")["refusing"])

    wait(named, "the status names the Service", 60)


def test_the_history_says_that_the_service_was_added(testbed: Testbed) -> None:
    get(testbed, "history")
    testbed.cluster.put("web", *objects(WEB, testbed.lab.pods[:1]))
    testbed.cluster.settle()
    changes = get(testbed, "history", service=f"default/{WEB.name}")["changes"]
    address = testbed.lab.pods[1].address(4)
    assert f"-{address}:8080" in changes[-1]["text"]
    testbed.cluster.put("web", *objects(WEB, testbed.lab.pods))
    testbed.cluster.settle()


def test_an_explanation_is_that_of_the_command(testbed: Testbed) -> None:
    client = testbed.pod.address(4)
    words = "--from", "pod", client, "TCP", f"{WEB.vip(4)}:80"
    done = testbed.cluster.command(testbed.node, "explain", *words, "-o", "json")
    query = {"from": "pod", "client": client, "protocol": "TCP", "destination": words[-1]}
    answer = get(testbed, "explain", **query)
    assert {name: answer[name] for name in json.loads(done.stdout)} == json.loads(done.stdout)
    named = get(testbed, "explain", **(query | {"destination": f"default/{WEB.name}:web"}))
    assert named["endpoints"] == answer["endpoints"]


def test_real_packets_of_a_question_are_watched_for_ten_seconds(testbed: Testbed) -> None:
    client, frontend = testbed.lab.client.address(), testbed.node.address(4)
    query = {"from": "external", "client": client, "destination": f"{frontend}:{WEB.node_port}"}
    path = f"/api/explain-live?{urlencode(query)}"

    def watch(_: int) -> tuple[int, dict[str, Any]]:
        status, content = http_request(testbed.node, "127.0.0.1", PORT, path, timeout=40)
        return status, json.loads(content)

    with ThreadPoolExecutor(2) as threads:
        watches = [threads.submit(watch, number) for number in range(2)]

        def all_ended() -> bool:
            ask(testbed.client, frontend, WEB.node_port)
            return all(watched.done() for watched in watches)

        wait(all_ended, "the watch ends", 60)
    (status, answer), (refused, why) = sorted(
        (watched.result() for watched in watches), key=lambda result: result[0]
    )
    assert (status, refused) == (200, 503)
    assert why["error"] == "real packets are watched for another browser"
    assert answer["missing"] == ""
    assert re.match("live for 1[0-9] s: ", answer["lines"][0]), "ten seconds, and what this takes"
    assert f"of {client} to default/{WEB.name}" in answer["lines"][0]
    assert any(f"{testbed.lab.pods[0].address(4)}:8080" in line for line in answer["lines"])


def test_no_pod_and_no_other_machine_reaches_the_page(testbed: Testbed) -> None:
    """They send to the node's addresses, and the page is at 127.0.0.1."""
    fails(testbed.pod, testbed.node.address(4), PORT)
    fails(testbed.client, testbed.node.address(4), PORT)


def test_the_agent_works_while_the_page_is_killed(testbed: Testbed) -> None:
    get(testbed, "status")
    agent = testbed.agent
    testbed.node.run(["pkill", "-9", "-P", str(agent.process.pid), "-f", "bpfsvc page"])
    agent.expect("the page of this node has failed: its process ended with status -9")
    assert agent.health().status == 200
    wait(lambda: get(testbed, "status")["well"], "the page is back", 60)
