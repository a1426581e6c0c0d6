"""A pod becomes ready, and unready, again and again: its connections come in bursts."""

from __future__ import annotations

import pytest

from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

FLAPPING = Named("flapping", 69)


def test_history_names_the_endpoint_that_flaps(operator: Operator) -> None:
    *steady, sick = operator.testbed.lab.pods
    for _ in range(3):
        operator.apply(FLAPPING, objects(FLAPPING, [*steady, sick]))
        operator.apply(FLAPPING, objects(FLAPPING, steady))
    shown = operator.types("history", "default/flapping")
    assert shown.count(f"+{sick.address(4)}:8080") == 3, "each time it came"
    assert (
        f"default/flapping: {sick.address(4)}:8080 FLAPS: it left 3 times and came back 2 times;"
        " look at the readiness probe of its pod"
    ) in shown
    assert shown.count("FLAPS") == 2, "by its two addresses"
    operator.remove(FLAPPING)
