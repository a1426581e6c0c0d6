"""Clients keep connections for long: a new backend gets none of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab.dial import connect
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

HELD = Named("held", 68)


def test_services_shows_which_backend_has_all_connections(operator: Operator) -> None:
    old, *new = operator.testbed.lab.pods
    operator.apply(HELD, objects(HELD, [old]))
    to = (operator.testbed.node.address(4), HELD.node_port)
    with ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(connect(operator.testbed.client, *to)).who()
        operator.apply(HELD, objects(HELD, [old, *new]))
        lines = operator.lines("services", "default/held:web")
    assert lines[2].split()[5] == "ACTIVE"
    active = {line.split()[1]: line.split()[5] for line in lines if "->" in line}
    assert active[f"{old.address(4)}:8080"] == "20+", "12+ is 12 or more"
    assert {active[f"{pod.address(4)}:8080"] for pod in new} == {"-"}
    operator.remove(HELD)
