"""What the loop logs of its checks, and when it syncs."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfsvc.agent.event_queue import EventQueue
from bpfsvc.agent.loop import Loop
from bpfsvc.agent.object_intake import ObjectIntake
from bpfsvc.agent.parts import Parts
from bpfsvc.agent.reports import Reports
from bpfsvc.http.healthz import Health
from bpfsvc.kube.event_recorder import NullEventRecorder
from bpfsvc.kube.source import Batch, Source
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import Node
from bpfsvc.services.cache import Cache
from bpfsvc.services.rules.context import ServiceConfig
from tests.config.settings import DEFAULTS
from tests.services.objects import endpoint_slice, service

WEB = ("default", "web")


class Syncer:
    """Records the calls of its methods."""

    def __init__(self) -> None:
        self.synced: list[set[tuple[str, str]]] = []
        self.drift = 0
        self.config: ServiceConfig | None = None

    def sync(self, touched: set[tuple[str, str]]) -> None:
        self.synced.append(touched)

    def sync_service_networks(self) -> None:
        """Nothing to do."""

    def sync_opted_out_pods(self) -> None:
        """Nothing to do."""

    def repair_drift(self) -> int:
        return self.drift

    def set_service_config(self, config: ServiceConfig) -> set[tuple[str, str]]:
        self.config = config
        return set()


class Running:
    """A loop without a kernel."""

    def __init__(self) -> None:
        health = Health()
        self.syncer = Syncer()
        self.follows = 0
        reports = Reports(NullEventRecorder())
        node = SimpleNamespace(follow_again=self._follow, set_node=lambda _: None)
        self.parts = Parts(
            config=replace(DEFAULTS, node_name="here"),
            events=EventQueue(),
            intake=ObjectIntake(Cache("here"), None, health, Observer(), reports),
            node=cast(Any, node),
            syncer=cast(Any, self.syncer),
            collector=cast(Any, None),
            netfilter_flows=cast(Any, None),
            health=health,
            health_checks=cast(Any, None),
            reports=reports,
        )
        source = cast(Source, SimpleNamespace(outage=lambda: None))
        self.loop = Loop(self.parts, source, None)

    def _follow(self) -> None:
        self.follows += 1

    def handle(self, *batches: Batch) -> None:
        self.loop._handle(batches)


def batch(*puts: Any) -> Batch:
    return Batch(puts, (), True, ())


def test_batches_that_came_together_are_one_sync() -> None:
    running = Running()
    running.handle(batch(service()), batch(endpoint_slice("10.0.0.1 here"), service("other")))
    assert running.syncer.synced == [{WEB, ("default", "other")}]


def test_a_batch_that_touches_no_service_changes_none() -> None:
    running = Running()
    running.handle(batch(endpoint_slice("10.0.0.1 here")))
    assert running.syncer.synced == [set()]


def test_a_node_object_that_changed_is_used_at_once(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.handle(batch(Node("here", "zone-b")))
    assert running.syncer.config == ServiceConfig(detector_v4=False, detector_v6=False)
    assert running.follows == 1
    assert caplog.messages == [
        "local pods cannot be identified; their traffic is handled as external"
        " (--detect-local-mode is ClusterCIDR, and no range of pods is known)"
    ]
    running.handle(batch(Node("here", "zone-b")))
    assert running.follows == 1


@pytest.mark.parametrize(
    ("drift", "lines"),
    [
        (0, []),
        (1, ["repaired 1 entry that another program changed in the kernel"]),
        (3, ["repaired 3 entries that another program changed in the kernel"]),
    ],
)
def test_drift_is_one_line(drift: int, lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.syncer.drift = drift
    with caplog.at_level(logging.INFO):
        running.loop._compare_with_kernel()
    assert caplog.messages == lines


def test_a_loop_that_is_stopped_before_it_begins_handles_nothing() -> None:
    running = Running()
    running.parts.events.put(batch(service()))
    stop = threading.Event()
    stop.set()
    running.loop.run(stop)
    assert running.syncer.synced == []
