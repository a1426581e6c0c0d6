"""Open connections become three gauges per service port."""

from __future__ import annotations

from types import SimpleNamespace

from bpfsvc.base.service_series import ALL, ServiceSeries
from bpfsvc.metrics.open_connections import ServiceOpenConnections
from bpfsvc.services.entries import Backend, ServicePort
from bpfsvc.services.plans.applied import AppliedState, applied

WEB = ServicePort("shop", "web", "http", 6, 4)
SQL = ServicePort("shop", "db", "sql", 6, 4)


def serving(*ports: tuple[ServicePort, range]) -> AppliedState:
    """Return the state with service ports, by the indices of their backends' counters."""
    known = AppliedState()
    for service_id, (port, counters) in enumerate(ports, 1):
        slots = [(Backend(bytes([index]) * 16, 80), index) for index in counters]
        known.update({port: applied(port, 80, service_id, 1, slots, {})})
    return known


def values(open_connections: dict[int, int], series: ServiceSeries = ALL) -> dict[str, list[float]]:
    """Return open connections, those of the busiest backend, and backends, by name."""
    table = SimpleNamespace(
        entries=0, busiest_ports=0, port_limit=0, open_connections=open_connections
    )
    state = serving((WEB, range(1, 4)), (SQL, range(4, 6)))
    shown: dict[str, list[float]] = {}
    for family in ServiceOpenConnections(table, state, series).collect():
        for sample in family.samples:
            shown.setdefault(sample.labels["name"], []).append(sample.value)
    return shown


def test_a_service_has_its_sum_its_busiest_backend_and_its_number_of_backends() -> None:
    assert values({1: 5, 3: 70, 4: 1}) == {"web": [75, 70, 3], "db": [1, 1, 2]}


def test_a_service_without_an_open_connection_is_not_shown() -> None:
    assert values({2: 1}) == {"web": [1, 1, 3]}
    assert values({}) == {}


def test_connections_of_a_backend_that_is_gone_are_of_no_service() -> None:
    assert values({9: 4, 4: 2}) == {"db": [2, 2, 2]}


def test_the_services_with_most_open_connections_are_shown_as_far_as_series_go() -> None:
    assert values({1: 5, 4: 6}, ServiceSeries(most=1)) == {"db": [6, 6, 2]}
