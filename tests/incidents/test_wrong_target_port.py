"""A targetPort that no pod listens at: every client is refused, and the Service looks complete."""

from __future__ import annotations

import pytest

from bpfsvc.devtools.lab.objects import port
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

WRONG = Named("wrong-port", 61)


def test_doctor_names_the_port_that_no_pod_listens_at(operator: Operator) -> None:
    operator.apply(WRONG, objects(WRONG, operator.testbed.lab.pods, [port(9999, "web")]))
    operator.fails(WRONG, 6)
    operator.reads_in_status("wrong-port:web", "refused", "see: bpfsvc services default/wrong-port")
    assert "refused" in operator.types("services", "default/wrong-port:web")
    finding = operator.finding("default/wrong-port:web")
    assert "failed" in finding["finding"]
    assert "listens at port 9999" in finding["hint"]
    operator.remove(WRONG)
