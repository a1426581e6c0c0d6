"""Which Services are synced after changes of objects, and when the node is followed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock, call

import pytest

from bpfsvc.agent.change_handler import ChangeHandler
from bpfsvc.agent.history.changes import History
from bpfsvc.agent.node_settings import NodeSettings
from bpfsvc.agent.objects.intake import ObjectIntake
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.http.healthz import Health
from bpfsvc.kube.event_recorder import NullEventRecorder
from bpfsvc.kube.source import Batch
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import Node
from bpfsvc.services.cache import Cache
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.context import ServiceConfig
from tests.config.settings import DEFAULTS
from tests.services.objects import endpoint_slice, service

WEB = ("default", "web")
NOW = 7.0


class Running:
    """A handler of changes without a kernel."""

    def __init__(self) -> None:
        health, cache = Health(), Cache("here")
        reports = Reports(NullEventRecorder(), health)
        self.node, self.services = Mock(), Mock()
        self.planner = Planner(cache, ServiceConfig(), max_backends=8)
        intake = ObjectIntake(cache, ParseErrors(), None, health, Observer(), reports)
        settings = NodeSettings(replace(DEFAULTS, node_name="here"), self.planner, self.node)
        self.network = Interfaces((), 0, 0)
        self.node.follow_network.side_effect = lambda network: setattr(
            self.node, "network", network
        )
        self.handler = ChangeHandler(
            *(intake, self.node, settings, self.services, History(None, 0)), lambda: self.network
        )
        self.handler.handle([self.network], NOW)
        self.node.reset_mock()

    def handle(self, *puts: Any) -> None:
        self.handler.handle([Batch((item,), (), True, ()) for item in puts], NOW)


def test_batches_that_came_together_are_one_sync() -> None:
    running = Running()
    running.handle(service(), endpoint_slice("10.0.0.1 here"), service("other"))
    assert running.services.sync.mock_calls == [call({WEB, ("default", "other")}, NOW)]


def test_a_batch_that_touches_no_service_changes_none() -> None:
    """Networks of cluster IPs, or pods, may have changed."""
    running = Running()
    running.handle(endpoint_slice("10.0.0.1 here"))
    assert running.services.sync.mock_calls == [call(set(), NOW)]


def test_a_change_of_interfaces_is_none_of_services() -> None:
    running = Running()
    running.network = Interfaces((), 1, 0)
    running.handler.handle([running.network], NOW)
    assert running.node.mock_calls == [call.follow_network(Interfaces((), 1, 0))]
    running.services.sync.assert_not_called()


def test_an_interface_is_followed_before_the_endpoint_behind_it_is_synced() -> None:
    """The picture with the pod's interface is still on its way to the agent's thread."""
    running = Running()
    order = Mock()
    order.attach_mock(running.node, "node")
    order.attach_mock(running.services, "services")
    running.network = Interfaces((), 1, 0)
    running.handle(service())
    assert order.mock_calls == [
        call.node.follow_network(running.network),
        call.services.sync({WEB}, NOW),
    ]


def test_a_picture_that_is_older_than_the_followed_one_is_not_used() -> None:
    running = Running()
    older, running.network = Interfaces((), 1, 0), Interfaces((), 2, 0)
    running.handle(service())
    running.handler.handle([older, running.network], NOW)
    assert running.node.mock_calls == [call.follow_network(running.network)]


def test_a_node_object_that_changed_is_used_at_once(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.handle(service())
    running.handle(Node("here", "zone-b"))
    assert running.planner.config == ServiceConfig(detector_v4=False, detector_v6=False)
    assert running.services.sync.mock_calls[1:] == [call({WEB}, NOW)]
    assert running.node.mock_calls == [call.set_node(Node("here", "zone-b")), call.refresh()]
    assert caplog.messages == [
        "local pods cannot be identified; their traffic is handled as external"
        " (--detect-local-mode is ClusterCIDR, and no range of pods is known)"
    ]
    running.handle(Node("here", "zone-b"))
    assert running.node.refresh.call_count == 1
