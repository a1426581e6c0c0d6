"""One of four backends drops SYNs: some clients wait, and no probe notices."""

from __future__ import annotations

import pytest

from tests.incidents.operator import Operator
from tests.lab.test_quarantine import SILENT, broken
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

SHOP = Named("silent", 62)


def test_status_and_services_name_the_backend_that_does_not_answer(operator: Operator) -> None:
    pods = operator.testbed.lab.pods
    operator.apply(SHOP, objects(SHOP, pods))
    sick = pods[-1]
    with broken(sick, SILENT):
        operator.fails(SHOP, 4)
        operator.reads_in_status("silent:web", f"1 of {len(pods)} backends", "unanswered")
        lines = operator.testbed.cluster.command(
            operator.testbed.node, "services", "default/silent:web"
        ).stdout.splitlines()
        (line,) = (line for line in lines if f"-> {sick.address(4)}:" in line)
        assert "unanswered" in line
        assert line.split()[5] in ("0", "-"), "attempts are no active connections"
        asked = ("203.0.113.9", "TCP", f"{SHOP.vip(4)}:80")
        told = operator.testbed.cluster.command(
            operator.testbed.node, "explain", "--from", "external", *asked
        ).stdout
        assert f"lately connections to {sick.address(4)}:8080: " in told
        finding = operator.finding("default/silent:web")
        assert f"{sick.address(4)}:8080" in finding["finding"]
        assert "bpfsvc.io/quarantine" in finding["hint"]
    operator.remove(SHOP)
