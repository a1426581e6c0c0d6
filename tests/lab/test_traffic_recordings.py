"""A recorded cluster lives again: after each step of it, connections go where they should.

A real API server's lists and events are told by one of our own at their recorded versions. What
should become of connections is worked out by the specification from the objects that the server
has by then, and asked of real packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.lab.apiserver.replay import Step, replay, steps
from bpfsvc.lab.cluster import Cluster
from bpfsvc.lab.patience import wait
from tests.lab.asked import Asked, Raw, check, equip
from tests.lab.sites import Site, Surroundings
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

SURROUNDINGS = Surroundings(
    NODE,
    ADDRESSES,
    ("10.244.0.0/16", "fd00:10:244::/48"),
    ("--nodeport-addresses", "0.0.0.0/0,::/0"),
    bridge="",
)


class Theatre(NamedTuple):
    """Where the recording is played."""

    site: Site
    cluster: Cluster
    acts: Iterator[Step]


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    """A node whose agent asks an API server that holds the recorded lists."""
    with ExitStack() as stack:
        site = stack.enter_context(Site(SURROUNDINGS))
        site.outside.hold(SERVER)
        options = SURROUNDINGS.options
        cluster = stack.enter_context(Cluster(site, options=options, served=(site.outside, SERVER)))
        acts = replay(cluster.api.store, RECORDINGS)
        # The lists are loaded with the first step, in which nothing happens yet.
        assert next(acts).events == ()
        cluster.start()
        yield Theatre(site, cluster, acts)


ACTS = list(steps(RECORDINGS))


@pytest.mark.parametrize("number", range(len(ACTS)), ids=[step.name for step in ACTS])
def test_after_each_step_connections_go_where_they_should(theatre: Theatre, number: int) -> None:
    """Those to Services that the step is about; to all where it shows in none, and at the end."""
    step = next(theatre.acts) if number else ACTS[0]
    assert step.name == ACTS[number].name
    theatre.cluster.settle()
    case = _case(theatre)
    equip(theatre.site, case)
    theatre.site.outside.hold(SERVER)
    asked = [*_flows(case, _services(step)), *_former(step)]
    if not asked or number == len(ACTS) - 1:
        asked = list(_flows(case, None))
    for flow in asked:
        expect = evaluate(case, flow).as_expected()
        held = Asked(theatre.site, case, flow)
        if any(event.object["kind"] == "Node" for event in step.events):
            # Marks say nothing of the watch of nodes.
            wait(partial(_holds, held, expect), f"{flow} as {expect}")
        check(held, expect)


def _holds(held: Asked, expect: Raw) -> bool:
    try:
        check(held, expect)
    except AssertionError:
        return False
    return True


def _services(step: Step) -> set[str]:
    """Give the names of the Services that a step is about; the Node is about all."""
    found = set()
    for event in step.events:
        metadata = event.object["metadata"]
        if event.object["kind"] == "Node":
            return {"web", "kubernetes", "lb"}
        if event.kind != "DELETED":
            found.add(
                metadata.get("labels", {}).get("kubernetes.io/service-name", metadata["name"])
            )
    return found


def _former(step: Step) -> list[dict[str, Any]]:
    """Give connections to what was the address of a Service until this step."""
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


def _case(theatre: Theatre) -> dict[str, Any]:
    """Give what the server has, in the format of the specification's cases."""
    store = theatre.cluster.api.store
    (node,) = (record.raw() for record in store.all("nodes"))
    return {
        "id": "recorded",
        "node": {
            "name": NODE,
            "ips": list(ADDRESSES),
            "primary": dict(zip(("IPv4", "IPv6"), ADDRESSES, strict=True)),
            "zone": node["metadata"]["labels"]["topology.kubernetes.io/zone"],
        },
        "cluster_cidr": list(SURROUNDINGS.cluster_cidrs),
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
    """Give connections and datagrams from everywhere to all frontends of some Services."""
    for one in frontends(case):
        if names is not None and service_key(one.port.service)[1] not in names:
            continue
        if one.port.protocol not in ("TCP", "UDP"):
            continue  # this kernel has no sockets of SCTP
        own = ADDRESSES[0 if one.port.family == 4 else 1]
        for came_from, source in CLIENTS[one.port.family].items():
            yield {
                "id": f"{service_key(one.port.service)[1]} from {came_from}",
                "from": came_from,
                "src_ip": source,
                "proto": one.port.protocol,
                "dst_ip": str(one.address or own),
                "dst_port": one.number,
            }
