"""A recorded cluster is replayed: after each step, connections reach the right endpoints.

The lab's API server sends the lists and events of a real one at their recorded versions. The
specification computes the expected connections from the server's present objects, and the test
compares them with real packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.devtools.lab.apiserver.replay import Step, replay, steps
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.patience import wait
from tests.lab.case_flows import CaseFlow, Raw, check, set_up_case
from tests.lab.case_testbed import AgentSetup, CaseTestbed
from tests.specification.frontends import frontends
from tests.specification.objects import service_key
from tests.specification.verdicts import evaluate

RECORDINGS = Path(__file__).parent.parent / "recordings"

NODE = "n1"
ADDRESSES = ("192.168.100.11", "fd00:192:168:100::11")
SERVER = "192.168.100.1"
CLIENTS = {
    4: {"pod": "10.244.1.99", "node": ADDRESSES[0], "external": "203.0.113.2"},
    6: {"pod": "fd00:10:244:1::99", "node": ADDRESSES[1], "external": "2001:db8::99"},
}

AGENT_SETUP = AgentSetup(
    NODE,
    ADDRESSES,
    ("10.244.0.0/16", "fd00:10:244::/48"),
    ("--nodeport-addresses", "0.0.0.0/0,::/0"),
    bridge="",
)


class RecordedCluster(NamedTuple):
    """The testbed of the recording, and its remaining steps, each with its number."""

    testbed: CaseTestbed
    cluster: LabCluster
    steps: Iterator[tuple[int, Step]]

    def advance(self, number: int) -> Step:
        """Replay up to a step. (The process that runs a test may not have run those before it.)"""
        return next(step for at, step in self.steps if at == number)


@pytest.fixture(scope="module")
def recorded() -> Iterator[RecordedCluster]:
    """A node whose agent watches an API server with the recorded lists."""
    with ExitStack() as stack:
        testbed = stack.enter_context(CaseTestbed(AGENT_SETUP))
        testbed.outside.add_address(SERVER)
        options = AGENT_SETUP.options
        cluster = stack.enter_context(
            LabCluster(testbed, options=options, served=(testbed.outside, SERVER))
        )
        remaining = enumerate(replay(cluster.api.store, RECORDINGS))
        # The first step loads the lists and has no events.
        assert next(remaining)[1].events == ()
        cluster.start()
        yield RecordedCluster(testbed, cluster, remaining)


STEPS = list(steps(RECORDINGS))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[step.name for step in STEPS])
def test_after_each_step_connections_reach_the_right_endpoints(
    recorded: RecordedCluster, number: int
) -> None:
    """Connections to the Services of the step; to all if the step names none, and at the end."""
    step = recorded.advance(number) if number else STEPS[0]
    assert step.name == STEPS[number].name
    recorded.cluster.settle()
    case = _case(recorded)
    set_up_case(recorded.testbed, case)
    recorded.testbed.outside.add_address(SERVER)
    flows = [*_flows(case, _services(step)), *_former(step)]
    if not flows or number == len(STEPS) - 1:
        flows = list(_flows(case, None))
    for flow in flows:
        expect = evaluate(case, flow).as_expected()
        case_flow = CaseFlow(recorded.testbed, case, flow)
        if any(event.object["kind"] == "Node" for event in step.events):
            # Marks do not cover the watch of nodes.
            wait(partial(_holds, case_flow, expect), f"{flow} as {expect}")
        check(case_flow, expect)


def _holds(case_flow: CaseFlow, expect: Raw) -> bool:
    try:
        check(case_flow, expect)
    except AssertionError:
        return False
    return True


def _services(step: Step) -> set[str]:
    """Return the names of the Services of a step; for the Node, of all."""
    seen = set()
    for event in step.events:
        metadata = event.object["metadata"]
        if event.object["kind"] == "Node":
            return {"web", "kubernetes", "lb"}
        if event.kind != "DELETED":
            seen.add(metadata.get("labels", {}).get("kubernetes.io/service-name", metadata["name"]))
    return seen


def _former(step: Step) -> list[dict[str, Any]]:
    """Return connections to addresses that belonged to a Service until this step."""
    return [
        {
            "from": "pod",
            "src_ip": CLIENTS[4]["pod"],
            "proto": "TCP",
            "dst_ip": event.object["spec"]["clusterIP"],
            "dst_port": event.object["spec"]["ports"][0]["port"],
        }
        for event in step.events
        if event.object["kind"] == "Service" and event.kind == "DELETED"
    ]


def _case(recorded: RecordedCluster) -> dict[str, Any]:
    """Return the server's objects in the format of the specification's cases."""
    store = recorded.cluster.api.store
    (node,) = (record.raw() for record in store.all("nodes"))
    return {
        "id": "recorded",
        "node": {
            "name": NODE,
            "ips": list(ADDRESSES),
            "primary": dict(zip(("IPv4", "IPv6"), ADDRESSES, strict=True)),
            "zone": node["metadata"]["labels"]["topology.kubernetes.io/zone"],
        },
        "cluster_cidr": list(AGENT_SETUP.cluster_cidrs),
        "nodeport_addresses": [],
        "service_cidrs": [],
        "services": [
            raw for raw in _raw(store.all("services")) if raw["metadata"]["name"] != "settled"
        ],
        "endpointslices": [
            {"ports": [], "endpoints": []} | {key: value for key, value in raw.items() if value}
            for raw in _raw(store.all("endpointslices"))
            if not raw["metadata"]["name"].startswith("settled")
        ],
    }


def _raw(records: Any) -> list[dict[str, Any]]:
    return [record.raw() for record in records]


def _flows(case: Raw, names: set[str] | None) -> Iterator[dict[str, Any]]:
    """Return connections and datagrams from everywhere to all frontends of some Services."""
    for frontend in frontends(case):
        if names is not None and service_key(frontend.port.service)[1] not in names:
            continue
        if frontend.port.protocol not in ("TCP", "UDP"):
            continue  # this kernel has no SCTP sockets
        own = ADDRESSES[0 if frontend.port.family == 4 else 1]
        for came_from, source in CLIENTS[frontend.port.family].items():
            yield {
                "id": f"{service_key(frontend.port.service)[1]} from {came_from}",
                "from": came_from,
                "src_ip": source,
                "proto": frontend.port.protocol,
                "dst_ip": str(frontend.address or own),
                "dst_port": frontend.number,
            }
