"""What somebody else changed in the kernel is found, counted and put right."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bpfsvc.model import ModelObject
from bpfsvc.plan import BackendSlot, Plan
from bpfsvc.programmed import Ledger
from bpfsvc.reconciler import repair
from bpfsvc.rows import Policies
from tests.rows import crowd
from tests.rows.kernel import Kernel, new_books
from tests.rows.objects import HTTP, endpoint_slice, frontend, service

WEB, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
STRANGER = frontend("10.96.0.77 80")


def begin() -> tuple[Kernel, Ledger]:
    """A Service with two frontends and two backends, as it was written."""
    kernel, books = Kernel(), new_books()
    things: list[ModelObject] = [
        service(type="NodePort", ports=[HTTP | {"nodePort": 30080}]),
        endpoint_slice("10.0.0.1 here", "10.0.0.2 there"),
    ]
    kernel.sync(books.plans(books.cluster.apply(things, ())), Random(1))
    return kernel, books.ledger


def mend(kernel: Kernel, ledger: Ledger) -> tuple[Plan, int]:
    return repair(
        ledger, kernel.names.values(), kernel.frontends.values(), kernel.backends.values()
    )


def lose_a_frontend(kernel: Kernel) -> None:
    del kernel.frontends[WEB]


def change_policies(kernel: Kernel) -> None:
    row = kernel.frontends[WEB]
    pod, node, other = row.policies
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
        (lose_a_name, 1),
        (change_a_name, 1),
        (add_a_name, 1),
    ],
    ids=lambda value: value.__name__.replace("_", " ") if callable(value) else "",
)
def test_what_was_changed_is_mended(harm: Callable[[Kernel], None], rows: int) -> None:
    """Of the backends of a service port all are written when one is not right."""
    kernel, ledger = begin()
    right = kernel.meaning()
    harm(kernel)
    plan, drift = mend(kernel, ledger)
    assert drift == rows
    for row in plan.backends_put:
        kernel.backends.pop(BackendSlot(*row[:3]), None)
    kernel.names |= {row.service_id: row for row in plan.names_put}
    kernel.backends |= {BackendSlot(*row[:3]): row for row in plan.backends_put}
    kernel.execute(
        Plan(
            frontends_put=plan.frontends_put,
            frontends_deleted=plan.frontends_deleted,
            backends_deleted=plan.backends_deleted,
            names_deleted=plan.names_deleted,
        ),
        Random(1),
    )
    assert kernel.meaning() == right
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
