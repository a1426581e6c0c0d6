"""Source ranges shut a client out: it waits until its time-out, and others work."""

from __future__ import annotations

import pytest

from tests.incidents.operator import Operator
from tests.lab.testbed import INGRESS, Named, objects

pytestmark = pytest.mark.slow

RANGED = Named("ranged", 65)


def test_status_and_doctor_say_that_the_client_is_in_no_source_range(operator: Operator) -> None:
    ranges = ["10.9.0.0/16", "fd09::/64"]
    made = objects(
        RANGED,
        operator.testbed.lab.pods,
        ingress=list(INGRESS.values()),
        loadBalancerSourceRanges=ranges,
    )
    made[0]["spec"]["type"] = "LoadBalancer"
    operator.apply(RANGED, made)
    operator.fails(RANGED, 2, address=INGRESS[4], port=80)
    operator.reads_in_status("ranged:web", "dropped: source range")
    finding = operator.finding("default/ranged:web")
    assert "the client is in none of its source ranges" in finding["finding"]
    assert "spec.loadBalancerSourceRanges" in finding["hint"]
    assert "10.9.0.0/16" in operator.types("services", "default/ranged:web", "-o", "wide")
    operator.remove(RANGED)
