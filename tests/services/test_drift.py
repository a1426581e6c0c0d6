"""Changes that another program made to the maps are found, counted and repaired."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bpfsvc.base.networks import Network
from bpfsvc.model import ModelObject
from bpfsvc.services.entries import Policies
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.drift import find_drift
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import BACKENDS, POSITIONS, SERVICES
from bpfsvc.services.service_map import ServiceMap
from tests.services import crowd
from tests.services.kernel import Kernel, new_planner
from tests.services.objects import HTTP, endpoint_slice, frontend, service

WEB, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
UNKNOWN = frontend("10.96.0.77 80")


def begin() -> tuple[Kernel, AppliedState]:
    """Return a kernel and the applied state of a Service with frontends and two backends."""
    kernel, planner = Kernel(), new_planner()
    things: list[ModelObject] = [
        service(
            type="LoadBalancer",
            ports=[HTTP | {"nodePort": 30080}],
            ingress=({"ip": "1.2.3.4"},),
            loadBalancerSourceRanges=["10.0.0.0/8", "11.0.0.0/8"],
            sessionAffinity="ClientIP",
        ),
        endpoint_slice("10.0.0.1 here", "10.0.0.2 there"),
    ]
    kernel.sync(planner, planner.cache.apply(things, ()), Random(1))
    return kernel, planner.applied_state


def drift_of(kernel: Kernel, applied_state: AppliedState) -> tuple[Plan, int]:
    return find_drift(applied_state, kernel.read)


def lose_a_frontend(kernel: Kernel) -> None:
    del kernel.frontends[WEB]


def change_policies(kernel: Kernel) -> None:
    entry = kernel.frontends[WEB]
    pod, node, other = entry.policies.by_class
    kernel.frontends[WEB] = entry._replace(policies=Policies(other._replace(size=1), node, pod))


def point_a_frontend_to_an_older_generation(kernel: Kernel) -> None:
    entry = kernel.frontends[NODE_PORT]
    kernel.frontends[NODE_PORT] = entry._replace(generation=entry.generation - 1)


def point_a_frontend_to_another_service(kernel: Kernel) -> None:
    kernel.frontends[WEB] = kernel.frontends[WEB]._replace(service_id=99)


def add_a_frontend(kernel: Kernel) -> None:
    kernel.frontends[UNKNOWN] = kernel.frontends[WEB]._replace(frontend=UNKNOWN)


def lose_a_backend(kernel: Kernel) -> None:
    del kernel.backends[max(kernel.backends)]


def change_a_backend(kernel: Kernel) -> None:
    slot = max(kernel.backends)
    kernel.backends[slot] = kernel.backends[slot]._replace(port=1)


def add_a_backend(kernel: Kernel) -> None:
    entry = kernel.backends[max(kernel.backends)]
    beyond = entry._replace(slot=entry.slot + 1)
    kernel.backends[beyond[:3]] = beyond


def lose_a_position(kernel: Kernel) -> None:
    del kernel.positions[max(kernel.positions)]


def change_a_position(kernel: Kernel) -> None:
    one = max(kernel.positions)
    kernel.positions[one] = kernel.positions[one]._replace(slots=(0, 1))


def add_a_position(kernel: Kernel) -> None:
    one = kernel.positions[max(kernel.positions)]._replace(port=1, slots=(0, 0))
    kernel.positions[one[:4]] = one


def add_a_position_of_another_generation(kernel: Kernel) -> None:
    one = kernel.positions[max(kernel.positions)]
    other = one._replace(generation=one.generation + 1)
    kernel.positions[other[:4]] = other


def lose_a_range(kernel: Kernel) -> None:
    del kernel.ranges[min(kernel.ranges)]


def add_a_range(kernel: Kernel) -> None:
    one = kernel.ranges[min(kernel.ranges)]._replace(network=Network(bytes(16), 100))
    kernel.ranges[one] = one


def add_a_range_of_no_service(kernel: Kernel) -> None:
    one = kernel.ranges[min(kernel.ranges)]._replace(service_id=99)
    kernel.ranges[one] = one


def lose_a_name(kernel: Kernel) -> None:
    kernel.names.clear()


def change_a_name(kernel: Kernel) -> None:
    (service_id,) = kernel.names
    kernel.names[service_id] = kernel.names[service_id]._replace(number=81)


def add_a_name(kernel: Kernel) -> None:
    (entry,) = kernel.names.values()
    kernel.names[99] = entry._replace(service_id=99)


def test_unchanged_entries_are_not_written() -> None:
    plan, drift = drift_of(*begin())
    assert (bool(plan), drift) == (False, 0)


@pytest.mark.parametrize(
    ("harm", "count"),
    [
        (lose_a_frontend, 1),
        (change_policies, 1),
        (point_a_frontend_to_an_older_generation, 1),
        (point_a_frontend_to_another_service, 1),
        (add_a_frontend, 1),
        (lose_a_backend, 2),
        (change_a_backend, 2),
        (add_a_backend, 1),
        (lose_a_position, 2),
        (change_a_position, 2),
        (add_a_position, 1),
        (add_a_position_of_another_generation, 1),
        (lose_a_range, 1),
        (add_a_range, 1),
        (add_a_range_of_no_service, 1),
        (lose_a_name, 1),
        (change_a_name, 1),
        (add_a_name, 1),
    ],
    ids=lambda value: value.__name__.replace("_", " ") if callable(value) else "",
)
def test_changed_entries_are_repaired(harm: Callable[[Kernel], None], count: int) -> None:
    """If one backend or position of a service port is wrong, all of them are written again."""
    kernel, applied_state = begin()
    right, positions = kernel.meaning(), dict(kernel.positions)
    harm(kernel)
    plan, drift = drift_of(kernel, applied_state)
    assert drift == count
    maps: tuple[ServiceMap[Any], ...] = (SERVICES, BACKENDS, POSITIONS)
    for one in maps:
        kernel.maps[one].update({one.key(entry): entry for entry in plan.puts(one)})
        plan.puts(one).clear()
    kernel.execute(plan, Random(1))
    assert (kernel.meaning(), kernel.positions) == (right, positions)
    assert drift_of(kernel, applied_state)[1] == 0


def test_a_comparison_needs_little_memory() -> None:
    """It runs again and again beside the workload of the node; entries come as streams."""
    applied_state = AppliedState()
    applied_state.update({one.port: one for one in crowd.ports()})
    (_, drift), _, peak = crowd.measured(lambda: find_drift(applied_state, crowd.read))
    assert drift == 0
    assert peak < 200 * len(crowd.IDS)
