"""A rolling update: a pod stops before its Service leaves it, and requests are lost meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.incidents.operator import Operator
from tests.lab.test_quarantine import REFUSE, broken
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

ROLLED = Named("rolled", 70)


@pytest.fixture
def rolled(operator: Operator) -> Iterator[str]:
    """The address of the pod that was replaced."""
    old, *others, new = operator.testbed.lab.pods
    operator.apply(ROLLED, objects(ROLLED, [old, *others]))
    with broken(old, REFUSE):
        operator.fails(ROLLED, 4)
        operator.reads_in_status("rolled:web", "refused")
        operator.apply(ROLLED, objects(ROLLED, [*others, new]))
    yield old.address(4)
    operator.remove(ROLLED)


def test_history_says_that_the_pod_refused_clients_before_it_left(
    operator: Operator, rolled: str
) -> None:
    def shown() -> str:
        return operator.types("history", "default/rolled")

    wait(lambda: f"refused by {rolled}" in shown(), "history names the backend", 20)
    text = shown()
    assert text.index(f"refused by {rolled}") < text.index(f"-{rolled}:8080")
