"""Connections that spill over to another zone, with real sockets held open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab import objects as kube
from bpfsvc.devtools.lab.dial import connect
from bpfsvc.devtools.lab.objects import Object
from tests.lab.test_schedulers import SPREAD, backends, explained, shown, spread_testbed
from tests.lab.testbed import Testbed, objects

pytestmark = pytest.mark.slow

OVERLOAD = 1.5


@pytest.fixture(scope="module")
def zoned() -> Iterator[Testbed]:
    """A lab with a zone for each node, and a Service; endpoints have hints for their own zone."""
    with spread_testbed() as testbed:
        nodes = testbed.lab.nodes
        described = (kube.node(node.name, node.addresses.values(), node.name) for node in nodes)
        testbed.cluster.apply("nodes", *described)
        annotations = {"bpfsvc.io/zone-overload": f"{OVERLOAD}", "bpfsvc.io/scheduler": "lc"}
        made, *slices = objects(SPREAD, backends(testbed), annotations=annotations)
        testbed.cluster.apply("spread", made, *(hinted(testbed, slice_) for slice_ in slices))
        yield testbed


def hinted(testbed: Testbed, manifest: Object) -> Object:
    """Return a slice with a hint for each endpoint: the zone of its node."""
    zones = {
        str(address): node.name
        for node in testbed.lab.nodes
        for pod in node.pods.values()
        for address in pod.addresses.values()
    }
    endpoints = [
        {
            **endpoint,
            "zone": zones[endpoint["addresses"][0]],
            "hints": {"forZones": [{"name": zones[endpoint["addresses"][0]]}]},
        }
        for endpoint in manifest["endpoints"]
    ]
    return {**manifest, "endpoints": endpoints}


def test_sockets_of_pods_and_of_the_node_spill_over_by_the_same_numbers_over_a_restart(
    zoned: Testbed, family: int
) -> None:
    near = {pod.name for pod in zoned.node.pods.values()}
    counts = {pod.name: 0 for pod in backends(zoned)}
    assert 0 < len(near & counts.keys()) < len(counts)

    def overloaded() -> bool:
        seen = [number for name, number in counts.items() if name in near]
        return sum(seen) / len(seen) > OVERLOAD * sum(counts.values()) / len(counts)

    with ExitStack() as stack:
        seen = []
        for number in range(36):
            if number == 18:
                zoned.cluster.kill(zoned.node)
                zoned.cluster.start(zoned.node)
            over, where = overloaded(), zoned.pod if number % 2 else zoned.node
            said = explained(zoned, family)
            assert ("the connection overflows" in said) == over, (counts, said)
            assert ("the connection stays near" in said) != over, (counts, said)
            one = stack.enter_context(connect(where, SPREAD.vip(family), 80))
            name = one.who().pod
            assert over or name in near, (number, counts)
            if over:
                assert counts[name] == min(counts.values()), (number, counts)
            counts[name] += 1
            seen.append(over)
        assert 0 < sum(seen) < len(seen)
        port = shown(zoned, family)
        assert port["zone_overload"] == f"{OVERLOAD}"
        assert {backend["state"] for backend in port["backends"]} == {"ready"}
        assert sorted(one["active"] for one in port["backends"]) == sorted(counts.values())
