"""The API server is away: Services go on as they were, and changes do not come."""

from __future__ import annotations

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

KEPT = Named("kept", 71)


def test_status_says_since_when_nothing_has_come(operator: Operator) -> None:
    operator.apply(KEPT, objects(KEPT, operator.testbed.lab.pods))
    api = operator.testbed.cluster.api
    api.go_away()
    try:
        wait(
            lambda: "no data of services, endpointslices" in operator.types("status"),
            "status says it",
            30,
        )
        assert ": Connection refused" in operator.types("status")
        assert operator.connects(KEPT)
        assert operator.status()[0] == "healthy"
    finally:
        api.come_back()
    wait(lambda: "no data of" not in operator.types("status"), "the agent is back", 60)
    operator.remove(KEPT)
