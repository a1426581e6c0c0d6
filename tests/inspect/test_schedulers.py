"""What the maps say of schedulers and weights."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from bpfsvc.base.address import pack
from bpfsvc.inspect.services.facts import ServicePortFacts
from bpfsvc.inspect.services.ports import collect
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule, Scheduler, lay_out
from tests.inspect.busy import OPEN, connection, slots
from tests.inspect.inspected import frontend, policy, shown
from tests.inspect.pinned import FIELDS, Maps

VIP, NODE_PORT = "10.96.0.10:80", "0.0.0.0:30080"
PODS = [f"10.244.1.{number}:8080" for number in range(1, 5)]
CLIENTS = ("pod", "node", "other")

_KIND, _KEY, _VALUE = FIELDS["frontends"]
_OLD = tuple((name, kind) for name, kind in _VALUE if name.rpartition(".")[2] != "table")
EARLIER_BUILD = {
    "frontends": (
        _KIND,
        _KEY,
        tuple(field for field in _OLD if field[0] not in ("schedule", "removal")),
    ),
    "schedule_tables": ("hash", (("value", "I"),), (("value", "I"),)),
}


def scheduled(
    backends: Sequence[str], size: int, schedule: Schedule, places: Sequence[int] = ()
) -> Maps:
    """Return a node with one Service whose first ``size`` slots are chosen."""
    maps = Maps()
    maps.service(1, "web", "http")
    slots(maps, 1, 9, backends)
    lead(maps, VIP, 0, size, schedule, len(places))
    write_table(maps, places)
    return maps


def lead(maps: Maps, to: str, first: int, size: int, schedule: Schedule, table: int = 0) -> None:
    """Write a frontend that leads to slots."""
    value = {"service": 1, "generation": 9, "schedule": schedule.value}
    for clients in CLIENTS:
        value |= {**policy(clients, first, size, reject=int(not size)), f"{clients}.table": table}
    maps.put("frontends", frontend(to), value)


def write_table(maps: Maps, places: Sequence[int], first: int = 0) -> None:
    for chunk in range(-(-len(places) // 128)):
        part = array("H", places[128 * chunk : 128 * chunk + 128])
        part.extend([NO_SLOT] * (128 - len(part)))
        key = {"service": 1, "generation": 9, "first": first, "chunk": chunk}
        maps.put("schedule_tables", key, {"slots": part.tobytes()})


def only(maps: Maps) -> ServicePortFacts:
    (port,) = collect(maps)
    return port


def weights(port: ServicePortFacts) -> list[int]:
    return [backend.weight for backend in port.backends]


NAMES = {
    "random": (Schedule.RANDOM, (), "random"),
    "random by weight": (Schedule.RANDOM, (0, 0, 1), "random"),
    "turns": (Schedule.ROUND, (), "rr"),
    "turns by weight": (Schedule.ROUND, (0, 0, 1), "wrr"),
    "a hash of the client": (Schedule.SOURCE, (), "sh"),
    "and its port": (Schedule.SOURCE_PORT, (), "sh,sh-port"),
    "a hash of the address asked for": (Schedule.DESTINATION, (), "dh"),
    "Maglev": (Schedule.MAGLEV, (0, 1), "mh"),
    "an endpoint of the address": (Schedule.LBLC, (), "lblc"),
    "a set of the address": (Schedule.LBLCR, (), "lblcr"),
    "Maglev with ports": (Schedule.MAGLEV_PORT, (0, 1), "mh,mh-port"),
}


@pytest.mark.parametrize(("schedule", "places", "name"), NAMES.values(), ids=NAMES.keys())
def test_a_scheduler_has_its_name_of_ip_vs(
    schedule: Schedule, places: tuple[int, ...], name: str
) -> None:
    maps = scheduled(PODS[:2], 2, schedule, places)
    assert only(maps).scheduler == name
    (row,) = shown(maps, "frontends")
    assert row["scheduler"] == name
    assert not any("table" in column for column in row)


def test_a_build_without_schedules_is_random() -> None:
    maps = Maps(EARLIER_BUILD)
    maps.service(1, "web", "http")
    slots(maps, 1, 9, PODS[:2])
    value = {"service": 1, "generation": 9, **policy("pod", 0, 2)}
    maps.put("frontends", frontend(VIP), value)
    assert (only(maps).scheduler, weights(only(maps))) == ("random", [1, 1])
    assert shown(maps, "frontends")[0]["scheduler"] == "random"


def test_weights_are_read_out_of_the_table() -> None:
    port = only(scheduled(PODS[:3], 3, Schedule.ROUND, (0, 0, 2, 0, 1, 2)))
    assert weights(port) == [3, 1, 2]
    assert weights(only(scheduled(PODS[:2], 2, Schedule.ROUND))) == [1, 1]


@pytest.mark.parametrize("name", ["sh", "mh", "random", "wrr"])
@pytest.mark.parametrize("given", [(1, 1, 1), (2, 1, 1), (3, 2, 1), (5, 1, 1)])
def test_weights_of_every_scheduler_are_those_that_were_given(
    name: str, given: tuple[int, ...]
) -> None:
    places = [(pack(f"10.244.1.{number}"), 8080) for number in range(1, 4)]
    layout = lay_out(Scheduler(name), list(zip(places, given, strict=True)))
    table = memoryview(layout.table).cast("H").tolist()
    assert weights(only(scheduled(PODS[:3], 3, layout.schedule, table))) == list(given)


def test_a_backend_behind_all_ranges_is_quiesced_with_or_without_connections() -> None:
    maps = scheduled(PODS[:3], 2, Schedule.ROUND)
    connection(maps, 1000, PODS[2], OPEN)
    backends = {
        backend.text: (backend.state, backend.weight, backend.active)
        for backend in only(maps).backends
    }
    assert backends == {
        PODS[0]: ("ready", 1, 0),
        PODS[1]: ("ready", 1, 0),
        PODS[2]: ("quiesced", 0, 1),
    }


def test_a_backend_in_quarantine_and_one_on_trial_are_told_from_others() -> None:
    pods = [*PODS, "10.244.1.5:8080"]
    maps = scheduled(pods, 2, Schedule.ROUND)
    by_name = {backend.text: backend.counters for backend in only(maps).backends}
    for backend, until, state in ((PODS[2], 5, 1), (PODS[3], 0, 2)):
        maps.put("quarantined", {"value": by_name[backend]}, {"until": until, "state": state})
    backends = {backend.text: (backend.state, backend.weight) for backend in only(maps).backends}
    assert backends == {
        PODS[0]: ("ready", 1),
        PODS[1]: ("ready", 1),
        PODS[2]: ("quarantined", 0),
        PODS[3]: ("trial", 0),
        pods[4]: ("quiesced", 0),
    }


def test_a_backend_on_trial_that_all_clients_may_get_has_its_weight() -> None:
    """As others are too few."""
    maps = scheduled(PODS[:2], 2, Schedule.ROUND)
    counters = only(maps).backends[1].counters
    maps.put("quarantined", {"value": counters}, {"until": 0, "state": 2})
    assert [(backend.state, backend.weight) for backend in only(maps).backends] == [
        ("ready", 1),
        ("trial", 1),
    ]


def test_all_backends_of_a_service_may_be_quiesced() -> None:
    backends = only(scheduled(PODS[:2], 0, Schedule.ROUND)).backends
    assert [(backend.state, backend.weight) for backend in backends] == [("quiesced", 0)] * 2


def test_of_two_sets_the_larger_one_has_the_weights() -> None:
    """The pods of this node alone have equal weights."""
    backends = [*PODS[:3], *PODS[:2]]
    maps = scheduled(backends, 3, Schedule.ROUND, (0, 0, 1, 1, 2))
    lead(maps, NODE_PORT, 3, 2, Schedule.ROUND)
    port = only(maps)
    assert (port.scheduler, weights(port)) == ("wrr", [2, 2, 1])


def test_what_addresses_keep_is_dumped() -> None:
    maps = scheduled(PODS[:2], 2, Schedule.LBLCR)
    key: dict[str, int | bytes] = {"service": 1, "address": pack("10.96.0.10")}
    maps.put("localities", {**key, "schedule": Schedule.LBLC}, {"last": 7})
    joined = array("I", [5, 1, 0, 0, 9, 3, 0, 0, 4, 2]).tobytes()
    maps.put("localities", {**key, "schedule": Schedule.LBLCR}, {"members": joined})
    maps.put("localities", {**key, "local": 1, "schedule": Schedule.LBLCR}, {})
    assert [
        (row["service"], row["address"], row["among"], row["scheduler"], row["counters"])
        for row in shown(maps, "localities")
    ] == [
        ("default/web:http", "10.96.0.10", "all", "lblc", ("7",)),
        ("default/web:http", "10.96.0.10", "all", "lblcr", ("9", "4", "5")),
        ("default/web:http", "10.96.0.10", "local", "lblcr", ()),
    ]


def test_tables_and_counts_are_dumped() -> None:
    maps = scheduled(PODS[:2], 2, Schedule.SOURCE, (0, NO_SLOT, 1))
    maps.put("schedule_rounds", {"value": 1}, {"connections": 7, "spilled": 2})
    assert shown(maps, "schedule_tables") == [
        {
            "service": "default/web:http",
            "generation": 9,
            "first": 0,
            "chunk": 0,
            "places": ("0", "-", "1"),
        }
    ]
    assert shown(maps, "schedule_rounds") == [
        {"service": "default/web:http", "connections": 7, "spilled": 2}
    ]


def test_what_spills_over_is_dumped() -> None:
    maps = scheduled(PODS[:2], 2, Schedule.RANDOM, ())
    value = {"first": 0, "size": 6, "near_first": 6, "near_size": 2, "far_trials": 1}
    summed = {"overload": 1250, "compared": 3, "near": 2}
    counters = array("I", [7, 5, 9, *[0] * 61]).tobytes()
    key = {"service": 1, "generation": 4}
    maps.put("spills", key, {**value, **summed, "counters": counters})
    assert shown(maps, "spills") == [
        {
            "service": "default/web:http",
            "generation": 4,
            "overload": "1.25",
            "all": "0-5",
            "near": "6-7",
            "far_trials": 1,
            "connections": "active",
            "near_counters": ("7", "5"),
            "far_counters": ("9",),
        }
    ]
