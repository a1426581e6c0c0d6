"""Warning Events that an agent posts about what it cannot do, at the API server of a lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.devtools.lab.objects import port, service, slices
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import EXTERNAL, ONE, Testbed, built_testbed, objects

SMALL = ("--max-frontends", "32")


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server, and one agent with room for few frontends."""
    with built_testbed(served=True, layout="routed", families=(4,)) as testbed:
        lab, cluster = testbed
        cluster.nodes = lab.nodes[:1]
        cluster.put(
            "first", *objects(ONE[0], lab.pods[:1], families=(4,), externalIPs=[EXTERNAL[4]])
        )
        cluster.start(options=SMALL)
        yield testbed


def warnings(testbed: Testbed, reason: str) -> dict[tuple[str, str], str]:
    """Return kind and name -> note of the Warning Events with a reason."""
    events = [record.raw() for record in testbed.cluster.api.store.all("Event")]
    return {
        (event["regarding"]["kind"], event["regarding"]["name"]): event["note"]
        for event in events
        if event["type"] == "Warning" and event["reason"] == reason
    }


def await_warning(testbed: Testbed, reason: str, kind: str, name: str) -> str:
    """Wait for an Event; return its note."""
    wait(lambda: (kind, name) in warnings(testbed, reason), f"{reason} of {kind} {name}")
    return warnings(testbed, reason)[kind, name]


def test_an_address_of_another_service(running: Testbed) -> None:
    later = objects(ONE[1], running.lab.pods[1:2], families=(4,), externalIPs=[EXTERNAL[4]])
    running.cluster.put("later", *later)
    note = await_warning(running, "AddressInUse", "Service", ONE[1].name)
    assert f"{EXTERNAL[4]}:80/TCP belongs to default/{ONE[0].name}" in note
    running.cluster.drop("later")


def test_a_service_that_finds_no_room(running: Testbed) -> None:
    """The Service says so, and the node, which is where the map can be enlarged."""
    many = [f"80.11.13.{number}" for number in range(1, 41)]
    crowd = [
        service("crowd", ["10.96.7.9"], [port(80, "web")], externalIPs=many),
        *slices("crowd", running.lab.pods[1:2], [port(8080, "web")]),
    ]
    running.cluster.put("crowd", *crowd)
    note = await_warning(running, "MapFull", "Service", "crowd")
    assert "map frontends is full (32 entries) (enlarge it with --max-frontends)" in note
    note = await_warning(running, "MapFull", "Node", running.node.name)
    assert note.startswith("Services are not up to date in the kernel: map frontends is full")
    running.cluster.drop("crowd")


def test_an_object_that_cannot_be_used(running: Testbed) -> None:
    broken: Any = slices("broken", running.lab.pods[1:2], [port(8080, "web")])[0]
    broken["endpoints"][0]["addresses"] = ["10.244.1.300"]
    made: Any = service("bad-ip", ["10.96.7.30"], [port(80, "web")])
    made["spec"] |= {"clusterIP": "10.96.7.300", "clusterIPs": ["10.96.7.300"]}
    running.cluster.put("broken", broken, made)
    note = await_warning(running, "UnusableObject", "EndpointSlice", broken["metadata"]["name"])
    assert note.startswith("cannot be used: ")
    assert "10.244.1.300" in note
    assert "10.96.7.300" in await_warning(running, "UnusableObject", "Service", "bad-ip")
