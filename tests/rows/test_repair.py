"""What somebody else changed in the kernel is found, counted and put right."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bpfsvc.model import ModelObject
from bpfsvc.plan import BackendSlot, Plan, PositionRow, RangeRow
from bpfsvc.programmed import Ledger
from bpfsvc.reconciler import repair
from bpfsvc.rows import Network, Policies
from tests.rows import crowd
from tests.rows.kernel import Kernel, new_books
from tests.rows.objects import HTTP, endpoint_slice, frontend, service

WEB, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
STRANGER = frontend("10.96.0.77 80")


def begin() -> tuple[Kernel, Ledger]:
    """A Service with four frontends, two backends and two ranges, as it was written."""
    kernel, books = Kernel(), new_books()
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
    kernel.sync(books.plans(books.cluster.apply(things, ())), Random(1))
    return kernel, books.ledger


def mend(kernel: Kernel, ledger: Ledger) -> tuple[Plan, int]:
    return repair(
        ledger,
        kernel.names.values(),
        kernel.frontends.values(),
        kernel.backends.values(),
        kernel.positions.values(),
        kernel.ranges,
    )


def lose_a_frontend(kernel: Kernel) -> None:
    del kernel.frontends[WEB]


def change_policies(kernel: Kernel) -> None:
    row = kernel.frontends[WEB]
    pod, node, other = row.policies.by_class
    kernel.frontends[WEB] = row._replace(policies=Policies(other._replace(size=1), node, pod))


def turn_a_frontend_back(kernel: Kernel) -> None:
    row = kernel.frontends[NODE_PORT]
    kernel.frontends[NODE_PORT] = row._replace(generation=row.generation - 1)


def lead_a_frontend_astray(kernel: Kernel) -> None:
    kernel.frontends[WEB] = kernel.frontends[WEB]._replace(service_id=99)


def add_a_frontend(kernel: Kernel) -> None:
    kernel.frontends[STRANGER] = kernel.frontends[WEB]._replace(frontend=STRANGER)


def lose_a_backend(kernel: Kernel) -> None:
    del kernel.backends[max(kernel.backends)]


def change_a_backend(kernel: Kernel) -> None:
    slot = max(kernel.backends)
    kernel.backends[slot] = kernel.backends[slot]._replace(port=1)


def add_a_backend(kernel: Kernel) -> None:
    slot = max(kernel.backends)
    row = kernel.backends[slot]
    beyond = BackendSlot(slot.service_id, slot.generation, slot.slot + 1)
    kernel.backends[beyond] = row._replace(slot=beyond.slot)


def lose_a_position(kernel: Kernel) -> None:
    del kernel.positions[max(kernel.positions)]


def change_a_position(kernel: Kernel) -> None:
    one = max(kernel.positions)
    kernel.positions[one] = PositionRow(one, (0, 1))


def add_a_position(kernel: Kernel) -> None:
    one = max(kernel.positions)._replace(port=1)
    kernel.positions[one] = PositionRow(one, (0, 0))


def add_a_position_of_another_generation(kernel: Kernel) -> None:
    one = max(kernel.positions)
    other = one._replace(generation=one.generation + 1)
    kernel.positions[other] = kernel.positions[one]._replace(position=other)


def lose_a_range(kernel: Kernel) -> None:
    kernel.ranges.remove(min(kernel.ranges))


def add_a_range(kernel: Kernel) -> None:
    kernel.ranges.add(RangeRow(min(kernel.ranges).service_id, Network(bytes(16), 100)))


def add_a_range_of_nobody(kernel: Kernel) -> None:
    kernel.ranges.add(min(kernel.ranges)._replace(service_id=99))


def lose_a_name(kernel: Kernel) -> None:
    kernel.names.clear()


def change_a_name(kernel: Kernel) -> None:
    (service_id,) = kernel.names
    kernel.names[service_id] = kernel.names[service_id]._replace(number=81)


def add_a_name(kernel: Kernel) -> None:
    (row,) = kernel.names.values()
    kernel.names[99] = row._replace(service_id=99)


def test_what_is_as_written_is_left_alone() -> None:
    plan, drift = mend(*begin())
    assert (bool(plan), drift) == (False, 0)


@pytest.mark.parametrize(
    ("harm", "rows"),
    [
        (lose_a_frontend, 1),
        (change_policies, 1),
        (turn_a_frontend_back, 1),
        (lead_a_frontend_astray, 1),
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
        (add_a_range_of_nobody, 1),
        (lose_a_name, 1),
        (change_a_name, 1),
        (add_a_name, 1),
    ],
    ids=lambda value: value.__name__.replace("_", " ") if callable(value) else "",
)
def test_what_was_changed_is_mended(harm: Callable[[Kernel], None], rows: int) -> None:
    """Of the backends of a service port all are written when one is not right, and positions."""
    kernel, ledger = begin()
    right, positions = kernel.meaning(), dict(kernel.positions)
    harm(kernel)
    plan, drift = mend(kernel, ledger)
    assert drift == rows
    for row in plan.backends_put:
        kernel.backends.pop(BackendSlot(*row[:3]), None)
    kernel.positions |= {row.position: row for row in plan.positions_put}
    kernel.names |= {row.service_id: row for row in plan.names_put}
    kernel.backends |= {BackendSlot(*row[:3]): row for row in plan.backends_put}
    kernel.execute(
        Plan(
            ranges_put=plan.ranges_put,
            frontends_put=plan.frontends_put,
            frontends_deleted=plan.frontends_deleted,
            ranges_deleted=plan.ranges_deleted,
            positions_deleted=plan.positions_deleted,
            backends_deleted=plan.backends_deleted,
            names_deleted=plan.names_deleted,
        ),
        Random(1),
    )
    assert (kernel.meaning(), kernel.positions) == (right, positions)
    assert mend(kernel, ledger)[1] == 0


def test_a_comparison_needs_little_room() -> None:
    """It happens again and again beside everybody's workload; the rows come as streams."""
    ledger = Ledger()
    ledger.settle({one.port: one for one in crowd.ports()})
    (_, drift), _, peak = crowd.weighed(
        lambda: repair(ledger, crowd.names(), crowd.frontends(), crowd.backends())
    )
    assert drift == 0
    assert peak < 200 * len(crowd.IDS)
