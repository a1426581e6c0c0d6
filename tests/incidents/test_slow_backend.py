"""One of four backends is slow: some clients wait, and are served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.incidents.congestion import congested
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

SHAPED = Named("shaped", 67)


def test_a_summary_of_observe_names_the_slow_backend(operator: Operator) -> None:
    pods = operator.testbed.lab.pods
    operator.apply(SHAPED, objects(SHAPED, pods))
    words = ("observe", "--service", "default/shaped", "--summary", "--for", "12")
    sick = pods[-1]
    with congested(sick), ThreadPoolExecutor(1) as terminal:
        shown = terminal.submit(operator.lines, *words)
        while not shown.done():
            operator.connects(SHAPED)
    (at,) = (at for at, line in enumerate(shown.result()) if "SLOW" in line)
    assert f"{sick.address(4)}:8080 (default/{sick.name} on " in shown.result()[at - 1]
    assert "SLOW to connect: " in shown.result()[at]
    operator.remove(SHAPED)
