"""Connections that sockets carry, in the numbers of ``bpfsvc services``."""

from __future__ import annotations

import pytest

from bpfsvc.inspect.services.facts import ServicePortFacts
from bpfsvc.inspect.services.ports import collect
from bpfsvc.services.scheduling.removal import OnRemoval
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.inspect.busy import GONE, OPEN, SETTINGS, connection, slots
from tests.inspect.inspected import frontend, policy
from tests.inspect.pinned import Maps, place

VIP = "10.96.0.10:80"
ONE, TWO = "10.244.1.5:8080", "10.244.2.7:8080"
OFF, HOST, ALL = range(3)


def node(
    socket_lb: int, schedule: Schedule = Schedule.RANDOM, *, protocol: int = 6, **more: int
) -> Maps:
    """Return a node with a Service of two backends; ``more``: other fields of its frontend."""
    maps = Maps(SETTINGS)
    maps.put("settings", {"value": 0}, {"socket_lb": socket_lb, "udp_seconds": 60})
    named = {"namespace": b"default", "name": b"web"}
    maps.put("services", {"value": 1}, {**named, "number": 80, "protocol": protocol, "family": 4})
    slots(maps, 1, 9, [ONE, TWO])
    value: dict[str, int | bytes] = {"service": 1, "generation": 9, "schedule": schedule.value}
    for clients in ("pod", "node", "other"):
        value |= policy(clients, 0, 2)
    fields = {"table": "pod.table"}
    value |= {fields.get(field, field): number for field, number in more.items()}
    maps.put("frontends", frontend(VIP, protocol), value)
    return maps


def load(maps: Maps, counters: int, active: int, inactive: int = 0) -> None:
    """Write the load of a backend; all of it is of sockets."""
    number = (active + (inactive << 32)) % (1 << 64)
    maps.put("backend_loads", {"value": counters}, {"connections": number, "sockets": number})


def web(maps: Maps) -> ServicePortFacts:
    (port,) = collect(maps)
    return port


def counts(maps: Maps) -> dict[str, tuple[str, int, int]]:
    return {
        backend.text: (backend.state, backend.active, backend.inactive)
        for backend in web(maps).backends
    }


def test_sockets_of_the_node_count_beside_connections_by_packets() -> None:
    maps = node(HOST)
    connection(maps, 1000, ONE, OPEN)
    maps.sockets = [(1, place(ONE)), (1, place(TWO)), (1, place(TWO))]
    assert counts(maps) == {ONE: ("ready", 2, 0), TWO: ("ready", 2, 0)}


def test_a_backend_that_left_drains_as_long_as_sockets_are_connected_to_it() -> None:
    maps = node(HOST)
    maps.sockets = [(1, place(GONE)), (7, place(GONE))]
    assert counts_of(maps) == {
        "default/web:80": {ONE: ("ready", 0), TWO: ("ready", 0), GONE: ("draining", 1)},
        "#7": {GONE: ("draining", 1)},
    }


def counts_of(maps: Maps) -> dict[str, dict[str, tuple[str, int]]]:
    return {
        port.text: {backend.text: (backend.state, backend.active) for backend in port.backends}
        for port in collect(maps)
    }


def test_with_a_scheduler_that_counts_loads_have_the_sockets_of_both_protocols() -> None:
    maps = node(ALL, Schedule.LC)
    maps.sockets = [(1, place(ONE))]
    load(maps, 1, 1)
    load(maps, 2, 3, 2)
    assert counts(maps) == {ONE: ("ready", 1, 0), TWO: ("ready", 3, 2)}
    assert web(maps).partial == ()


def test_a_socket_that_is_older_than_the_scheduler_counts_once() -> None:
    maps = node(ALL, Schedule.LC)
    maps.sockets = [(1, place(ONE)), (1, place(ONE))]
    load(maps, 1, 1)
    assert counts(maps)[ONE] == ("ready", 2, 0)


def test_a_load_below_0_for_a_moment_is_none() -> None:
    maps = node(ALL, Schedule.LC)
    load(maps, 1, -1, -1)
    assert counts(maps)[ONE] == ("ready", 0, 0)


def test_a_load_counts_only_where_the_scheduler_compares_it() -> None:
    """Numbers of a former scheduler may stand there."""
    maps = node(ALL, Schedule.ROUND)
    load(maps, 1, 5)
    assert counts(maps)[ONE] == ("ready", 0, 0)


@pytest.mark.parametrize(
    ("maps", "partial"),
    [
        pytest.param(node(OFF), (), id="no socket is translated"),
        pytest.param(node(OFF, protocol=17), (), id="nor are datagrams"),
        pytest.param(node(HOST), (), id="all TCP sockets are listed"),
        pytest.param(node(HOST, protocol=17), ("inactive",), id="UDP sockets are not"),
        pytest.param(node(ALL), ("active",), id="nor are those of pods"),
        pytest.param(node(ALL, protocol=17), ("inactive",), id="of either protocol"),
        pytest.param(node(ALL, protocol=132), (), id="SCTP sockets are not translated"),
        pytest.param(node(ALL, Schedule.ROUND), (), id="pods take turns by packets"),
        pytest.param(node(ALL, table=3), (), id="pods choose by weight by packets"),
        pytest.param(node(ALL, removal=OnRemoval.RESET), (), id="resets are for packets"),
        pytest.param(node(ALL, Schedule.ROUND, protocol=17), ("inactive",), id="but for UDP"),
        pytest.param(node(ALL, Schedule.LC, protocol=17), (), id="which only loads count"),
    ],
)
def test_what_may_be_left_out_is_named(maps: Maps, partial: tuple[str, ...]) -> None:
    assert web(maps).partial == partial


def test_where_sockets_cannot_be_listed_tcp_is_not_known_either() -> None:
    for maps in (node(HOST), node(ALL, Schedule.ROUND)):
        maps.sockets = None
        assert web(maps).partial == ("active",)
        assert web(maps).known(0, 0) == (None, 0)
        assert web(maps).known(2, 0) == (2, 0)


def test_of_a_service_without_a_name_the_protocol_is_not_known() -> None:
    maps = Maps(SETTINGS)
    maps.put("settings", {"value": 0}, {"socket_lb": ALL, "udp_seconds": 60})
    connection(maps, 1000, GONE, OPEN, service=7)
    assert web(maps).partial == ("active", "inactive")
