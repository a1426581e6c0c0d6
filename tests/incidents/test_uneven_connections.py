"""Clients keep connections for long: a new backend gets none of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.devtools.lab.dial import connect
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.patience import wait
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

HELD = Named("held", 68)


def gauges(operator: Operator) -> tuple[float, ...]:
    """Return the open connections, those of the busiest backend, and the number of backends."""
    _, text = http_request(operator.testbed.node, "127.0.0.1", 10249, "/metrics")
    values = {
        sample.name: sample.value
        for family in parse(text.decode())
        for sample in family.samples
        if sample.labels.get("name") == HELD.name
    }
    name = "bpfsvc_service_open_connections"
    return tuple(values.get(f"{name}{more}", 0) for more in ("", "_busiest", "_backends"))


def test_services_shows_which_backend_has_all_connections(operator: Operator) -> None:
    old, *new = operator.testbed.lab.pods
    operator.apply(HELD, objects(HELD, [old]))
    to = (operator.testbed.node.address(4), HELD.node_port)
    with ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(connect(operator.testbed.client, *to)).who()
        operator.apply(HELD, objects(HELD, [old, *new]))
        wait(lambda: gauges(operator) == (20, 20, 4), "the metrics", 60)
        lines = operator.lines("services", "default/held:web")
    assert lines[2].split()[5] == "ACTIVE"
    active = {line.split()[1]: line.split()[5] for line in lines if "->" in line}
    assert active[f"{old.address(4)}:8080"] == "20+", "12+ is 12 or more"
    assert {active[f"{pod.address(4)}:8080"] for pod in new} == {"-"}
    operator.remove(HELD)


@pytest.mark.parametrize("family", [4, 6])
def test_metrics_count_translated_sockets_too(operator: Operator, family: int) -> None:
    """No packet of theirs is translated, so the table of connections does not have them."""
    old, *new = operator.testbed.lab.pods
    operator.apply(HELD, objects(HELD, [old]))
    with ExitStack() as clients:
        for _ in range(7):
            clients.enter_context(connect(operator.testbed.node, HELD.vip(family), 80))
        operator.apply(HELD, objects(HELD, [old, *new]))
        wait(lambda: gauges(operator) == (7, 7, 4), "the metrics", 60)
    wait(lambda: gauges(operator) == (0, 0, 0), "the end of the connections", 60)
    operator.remove(HELD)
