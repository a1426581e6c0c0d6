"""A recording of a real API server while workloads started, rolled out, drained and ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.model import ModelObject, read_json
from bpfsvc.services.planner import Planner
from tests.services.kernel import Kernel, new_planner

RECORDINGS = Path(__file__).parent.parent / "recordings"
KINDS = {
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "nodes": ("v1", "Node"),
}


def listed() -> Iterator[ModelObject]:
    """Yield the objects of the three lists, whose items have no kind."""
    for stem, (api_version, kind) in KINDS.items():
        found = json.loads((RECORDINGS / f"{stem}.list.json").read_text())
        for item in found["items"]:
            text = json.dumps({"apiVersion": api_version, "kind": kind} | item)
            yield from read_json(text.encode())


def watched() -> list[dict[str, Any]]:
    """Return the events of the three watches in the order of time, without bookmarks."""
    lines = [
        json.loads(line)
        for stem in KINDS
        for line in (RECORDINGS / f"{stem}.watch.jsonl").read_text().splitlines()
    ]
    events = [line for line in lines if line.get("event", {}).get("type") not in (None, "BOOKMARK")]
    return sorted(events, key=lambda line: float(line["t"]))


def steps() -> dict[str, float]:
    lines = map(json.loads, (RECORDINGS / "steps.jsonl").read_text().splitlines())
    return {line["step"]: line["t"] for line in lines}


def read_event(event: dict[str, Any]) -> tuple[ModelObject, ...]:
    """Read the object of an event."""
    return read_json(json.dumps(event["object"]).encode())


class Replay:
    """The recording up to some time, in a kernel of dictionaries that checks every write."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.planner: Planner = new_planner("n1")
        self._random = Random(1)
        self._events = watched()
        self._sync(list(listed()), [])

    def until(self, moment: float) -> None:
        while self._events and float(self._events[0]["t"]) < moment:
            event = self._events.pop(0)["event"]
            objects = read_event(event)
            if event["type"] == "DELETED":
                self._sync([], list(objects))
            else:
                self._sync(list(objects), [])

    def backends_of(self, name: str, family: int = 4) -> set[str]:
        return {
            endpoint_text(*backend.place)
            for one in self.planner.applied_state
            if (one.port.name, one.port.family) == (name, family)
            for backend in one.backends()
        }

    def services(self) -> set[str]:
        return {one.port.name for one in self.planner.applied_state}

    def _sync(self, puts: list[ModelObject], gone: list[ModelObject]) -> None:
        touched = self.planner.cache.apply(puts, [one.key for one in gone])
        self.kernel.sync(self.planner, touched, self._random)


def test_a_recorded_cluster_ends_with_every_service_empty() -> None:
    """From the lists through every event; each single write is checked."""
    replay = Replay()
    assert replay.services() == {"kubernetes", "web"}
    assert len(replay.backends_of("web")) == len(replay.backends_of("web", 6)) == 3
    replay.until(float("inf"))
    assert replay.services() == {"kubernetes", "web", "lb", "nobody"}
    assert all(
        not one.size and all(three.other.reject for three in one.frontends().values())
        for one in replay.planner.applied_state
    )


def test_the_entries_follow_the_steps_of_the_recording() -> None:
    replay, moments = Replay(), steps()

    def before(step: str) -> Replay:
        replay.until(moments[step] - 0.5)  # a step is noted some ms before or after its first event
        return replay

    def addresses() -> set[str]:
        return {unpack(one.address) for one in replay.kernel.frontends}

    before("LoadBalancer gets two ingress IPs, VIP and Proxy")
    seen = addresses()
    before("headless service (must not be seen)")
    assert len(addresses() - seen) == 1, "the VIP and not the Proxy address"

    before("externalIPs, SCTP, unnamed port")
    assert "ext" not in replay.services()
    before("trafficDistribution PreferSameZone: hints appear")
    assert "extip" in replay.services()
    before("no endpoints")
    assert len(replay.backends_of("web")) == 3
    assert len(replay.backends_of("near")) == 2, "narrowed to this zone"

    before("service-proxy-name removed: appears")
    assert "other" not in replay.services()
    before("service-proxy-name added: disappears")
    assert "other" in replay.services()
    before("scale to 6, new pods not ready")
    assert "other" not in replay.services()

    counts = {}
    for step, following in pairwise(moments):
        before(following)
        counts[step] = len(replay.backends_of("web"))
    assert counts["scale to 6, new pods not ready"] == 3
    assert counts["new pods ready"] == 6
    assert counts["web-1 fails readiness"] == 5
    assert counts["web-0 and web-2 deleted: terminating and serving"] == 3
