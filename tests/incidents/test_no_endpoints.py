"""A Service without endpoints: its selector matches no pod, or no pod is ready."""

from __future__ import annotations

import pytest

from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

NOBODY = Named("nobody", 64)


def test_status_and_doctor_say_that_there_are_no_endpoints(operator: Operator) -> None:
    operator.apply(NOBODY, objects(NOBODY, []))
    operator.fails(NOBODY)
    operator.reads_in_status("nobody:web", "rejected: no endpoints")
    finding = operator.finding("default/nobody:web")
    assert "it has no endpoints" in finding["finding"]
    assert "kubernetes.io/service-name=nobody" in finding["hint"]
    operator.remove(NOBODY)
