"""externalTrafficPolicy Local, and clients send to a node without a pod of the Service."""

from __future__ import annotations

import pytest

from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

FAR = Named("far", 66)


def test_status_and_doctor_say_that_no_pod_is_on_this_node(operator: Operator) -> None:
    far = [pod for pod in operator.testbed.lab.pods if pod.node is not operator.testbed.node]
    operator.apply(FAR, objects(FAR, far, externalTrafficPolicy="Local"))
    operator.fails(FAR, 2)
    operator.reads_in_status("far:web", "dropped: no endpoints")
    finding = operator.finding("default/far:web")
    assert "its traffic policy is Local, and no ready pod is on this node" in finding["finding"]
    operator.remove(FAR)
