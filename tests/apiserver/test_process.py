"""The lab's API server as a separate process, controlled over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RECORDINGS = Path(__file__).parent.parent / "recordings"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"


class Process:
    """A server with a crowd of 20 Services."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        self.url: str = said["url"]
        self._control: str = said["control"]

    def get(self, place: str) -> Any:
        with urllib.request.urlopen(self.url + place, timeout=10) as answer:
            return json.loads(answer.read())

    def control(self, word: str, **values: Any) -> Any:
        request = urllib.request.Request(
            f"{self._control}/control/{word}", json.dumps(values).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    command = [
        sys.executable,
        "-m",
        "bpfsvc.devtools.lab.apiserver",
        "--fill",
        "20",
        "--endpoints",
        "3",
    ]
    command += ["--load", str(RECORDINGS), "--control", "127.0.0.1:0"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        yield Process(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(10) == 0


def test_the_server_is_filled_when_it_prints_its_address(process: Process) -> None:
    """The recorded objects, and the crowd: Services with their slices."""
    names = {item["metadata"]["name"] for item in process.get("/api/v1/services")["items"]}
    assert {"kubernetes", "web", "web-00000", "web-00019"} < names
    items = process.get(SLICES + "?labelSelector=app%3Dweb-00007")["items"]
    assert [len(item["endpoints"]) for item in items] == [3]


def test_a_change_moves_an_endpoint_and_returns_the_time(process: Process) -> None:
    """The slice has the same time as its trigger annotation, in microseconds."""
    sent = process.control("change", service=4)
    (item,) = process.get(SLICES + "?labelSelector=app%3Dweb-00004")["items"]
    assert item["endpoints"][0]["addresses"] == [sent["address"]]
    assert item["metadata"]["resourceVersion"] == str(sent["version"])
    trigger = item["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"]
    assert trigger.endswith(f"{sent['unix'] % 1:.6f}"[1:] + "Z")


def test_a_run_changes_at_a_rate_and_watchers_get_the_events(process: Process) -> None:
    """Each change reaches the watch; the report has the delays."""
    status = process.control("status")
    place = f"{SLICES}?watch=1&resourceVersion={status['resourceVersion']}"
    with urllib.request.urlopen(process.url + place, timeout=10) as stream:
        report = process.control("run", rate=500, seconds=0.2)
        assert (report["changes"], report["watched"]) == (100, 1)
        assert set(report["lag"]) == set(report["late"]) == {"p50", "p99", "max"}
        received = [json.loads(stream.readline()) for _ in range(100)]
    assert {event["type"] for event in received} == {"MODIFIED"}


def test_objects_faults_and_refusals_can_be_controlled(process: Process) -> None:
    """The answer to a wrong request has an error."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}}
    assert process.control("put", objects=[node])["version"]
    assert process.get("/api/v1/nodes/n9")["kind"] == "Node"
    process.control("delete", kind="Node", namespace="", name="n9")
    process.control("faults", absent=["discovery.k8s.io"])
    with pytest.raises(urllib.request.HTTPError, match="404"):
        process.get(SLICES)
    process.control("faults", absent=[])
    process.control("answer", code=429, path="nodes", retry_after=1)
    with pytest.raises(urllib.request.HTTPError, match="429"):
        process.get("/api/v1/nodes")
    assert process.control("nonsense")["error"]
    assert process.control("change", service=1, more=2)["error"]
