"""Services with schedulers and weights: from objects to entries."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import NO_EXTRA, Policies, Policy, PortEntries
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.registry import BACKENDS, ENDPOINTS, POSITIONS
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING, read_scheduling
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule, Scheduler
from tests.services.cluster import (
    KEY,
    LOCAL,
    NODE_PORT,
    ONE,
    THREE,
    TWO,
    VIP,
    Cluster,
    scheduled,
)
from tests.services.kernel import Kernel, new_planner
from tests.services.objects import CONFIG, NODE, endpoint_slice, frontend, service


def entries_of(
    thing: Service, *slices: EndpointSlice, config: ServiceConfig = CONFIG
) -> PortEntries:
    scheduling, faults = read_scheduling(thing, slices)
    assert faults == []
    view = evaluate(thing, slices, NODE, config, scheduling)
    (entries,) = view.entries.values()
    return entries


def addresses(entries: PortEntries) -> list[str]:
    return [unpack(one.address) for one in entries.backends]


def policies(entries: PortEntries) -> Policies:
    return entries.frontends[VIP]


def table(entries: PortEntries, first: int = 0) -> list[int]:
    """Return the places of the table at some first slot, with those that are unused."""
    return [
        slot
        for at, _, places in entries.extra.get("schedule_tables", ())
        if at == first
        for slot in memoryview(places).cast("H")
    ]


def test_a_service_without_annotations_has_the_entries_that_it_always_had() -> None:
    entries = entries_of(service(), endpoint_slice(ONE, TWO))
    assert policies(entries).schedule == Schedule.RANDOM
    assert policies(entries).pod == Policy(0, 2, False, False)
    assert entries.extra is NO_EXTRA


def test_endpoints_that_take_turns_need_no_table() -> None:
    entries = entries_of(scheduled("rr"), endpoint_slice(ONE, TWO))
    assert policies(entries).schedule == Schedule.ROUND
    assert policies(entries).pod == Policy(0, 2, False, False)
    assert entries.extra is NO_EXTRA


def test_the_scheduler_of_the_node_is_that_of_services_that_name_none() -> None:
    config = replace(CONFIG, scheduler=Scheduler("sh"))
    assert policies(entries_of(service(), config=config)).schedule == Schedule.SOURCE
    assert policies(entries_of(scheduled("rr"), config=config)).schedule == Schedule.ROUND
    assert policies(entries_of(scheduled("random"), config=config)).schedule == Schedule.RANDOM
    weights = entries_of(scheduled("", "10.0.0.1=2"), config=config)
    assert policies(weights).schedule == Schedule.SOURCE


def test_a_service_without_annotations_is_planned_by_the_scheduler_of_the_node() -> None:
    config = replace(CONFIG, scheduler=Scheduler("mh"))
    planner = Planner(Cache("here"), config, max_backends=10)
    kernel = Kernel()
    touched = planner.cache.apply([service(), endpoint_slice(ONE, TWO)], ())
    kernel.sync(planner, touched, Random(1))
    entry = kernel.frontends[VIP]
    assert entry.policies.schedule == Schedule.MAGLEV
    assert set(kernel.table(entry, entry.policies.pod)) == {0, 1}


def test_weights_are_places_of_a_table_that_counts_from_the_first_slot() -> None:
    entries = entries_of(scheduled("wrr", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    assert policies(entries).schedule == Schedule.ROUND
    assert policies(entries).pod == Policy(0, 2, False, False, table=3)
    assert sorted(table(entries)[:3]) == [0, 0, 1]
    assert set(table(entries)[3:]) == {NO_SLOT}
    assert len(table(entries)) == 128


def test_a_long_table_has_several_chunks() -> None:
    entries = entries_of(scheduled("mh"), endpoint_slice(ONE, TWO))
    assert policies(entries).schedule == Schedule.MAGLEV
    places = policies(entries).pod.table
    assert places > 128
    chunks = [chunk for _, chunk, _ in entries.extra["schedule_tables"]]
    assert chunks == list(range(-(-places // 128)))
    assert set(table(entries)[:places]) == {0, 1}
    assert set(table(entries)[places:]) <= {NO_SLOT}


def test_zones_nodes_and_slices_have_weights() -> None:
    slices = (
        endpoint_slice("10.0.0.1 here in:a", "10.0.0.2 there in:a", name="web-1"),
        endpoint_slice("10.0.0.3 there in:b", name="web-2", annotations={"bpfsvc.io/weight": "4"}),
    )
    entries = entries_of(scheduled("random", "zone/a=2,node/here=3"), *slices)
    assert policies(entries).pod.table == 9
    assert sorted(table(entries)[:9]) == [0, 0, 0, 1, 1, 2, 2, 2, 2]


def test_an_endpoint_of_two_slices_has_the_weight_of_the_slice_that_counts() -> None:
    slices = (
        endpoint_slice("10.0.0.1 here", name="a", annotations={"bpfsvc.io/weight": "3"}),
        endpoint_slice("10.0.0.1 here leaving", name="b", annotations={"bpfsvc.io/weight": "9"}),
        endpoint_slice(TWO, name="c"),
    )
    assert policies(entries_of(service(), *slices)).pod.table == 4


def test_weight_0_keeps_the_backend_behind_all_ranges() -> None:
    entries = entries_of(
        scheduled("rr", "10.0.0.1=0", **LOCAL), endpoint_slice(ONE, TWO, THREE, "10.0.0.4 here")
    )
    assert addresses(entries) == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.4", "10.0.0.1"]
    assert policies(entries).pod == Policy(0, 3, False, False)
    assert entries.frontends[NODE_PORT].other == Policy(3, 1, False, False)


def test_where_all_endpoints_have_weight_0_clients_are_refused() -> None:
    entries = entries_of(scheduled("rr", "node/here=0", **LOCAL), endpoint_slice(ONE, TWO))
    assert policies(entries).pod == Policy(0, 1, False, False)
    assert entries.frontends[NODE_PORT].other == Policy(0, 0, False, True)
    nothing = entries_of(scheduled("mh", "10.0.0.1=0"), endpoint_slice(ONE))
    assert policies(nothing).pod == Policy(0, 0, False, True)
    assert nothing.extra is NO_EXTRA
    assert addresses(nothing) == ["10.0.0.1"]


def test_local_clients_without_any_endpoint_are_dropped_as_ever() -> None:
    entries = entries_of(scheduled("rr", "10.0.0.2=0", **LOCAL), endpoint_slice(TWO))
    assert entries.frontends[NODE_PORT].other == Policy(0, 0, False, False)


def test_a_hash_that_may_meet_weight_0_refuses() -> None:
    slices = endpoint_slice(ONE, TWO)
    refused = policies(entries_of(scheduled("sh", "10.0.0.1=0"), slices)).pod
    assert (refused.size, refused.reject, refused.table) == (1, True, 256)
    falls_back = policies(entries_of(scheduled("sh,sh-fallback", "10.0.0.1=0"), slices)).pod
    assert (falls_back.size, falls_back.reject) == (1, False)


def test_equal_sets_share_one_range_and_its_table() -> None:
    entries = entries_of(
        scheduled("wrr", "10.0.0.1=2", **LOCAL), endpoint_slice(ONE, "10.0.0.4 here")
    )
    pod, other = policies(entries).pod, entries.frontends[NODE_PORT].other
    assert (pod.first, pod.size, pod.table) == (other.first, other.size, other.table) == (0, 2, 3)
    assert [first for first, _, _ in entries.extra["schedule_tables"]] == [0]


def test_sets_that_differ_have_tables_of_their_own() -> None:
    entries = entries_of(
        scheduled("wrr", "10.0.0.1=2", **LOCAL), endpoint_slice(ONE, "10.0.0.4 here", TWO)
    )
    other = entries.frontends[NODE_PORT].other
    assert (other.first, other.size, other.table) == (3, 2, 3)
    assert sorted(table(entries)[:4]) == [0, 0, 1, 2]
    assert sorted(table(entries, 3)[:3]) == [0, 0, 1]


def test_the_guard_of_a_cluster_ip_has_no_schedule() -> None:
    entries = entries_of(scheduled("rr"), endpoint_slice(ONE))
    assert entries.frontends[frontend("10.96.0.1 rest")].schedule == Schedule.RANDOM


def test_services_of_equal_endpoints_share_their_entries() -> None:
    one = entries_of(scheduled("sh", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    other = entries_of(scheduled("sh", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    assert one.extra is other.extra


# -- values that cannot be used --


def test_a_bad_value_leaves_the_last_good_one_in_force() -> None:
    good = scheduled("sh,sh-port", "node/here=2")
    before, faults = read_scheduling(good, [])
    assert faults == []
    bad = scheduled("sh,sh-prot", "node/here=2x")
    now, faults = read_scheduling(bad, [], before)
    assert now == before
    assert len(faults) == 2


def test_a_bad_value_without_a_good_one_before_is_none() -> None:
    slices = [endpoint_slice(ONE, annotations={"bpfsvc.io/weight": "many"})]
    now, faults = read_scheduling(scheduled("x", "y"), slices)
    assert now[:2] == USUAL_SCHEDULING[:2]
    assert now.of_slices == {("EndpointSlice", "web-1"): 1}
    assert len(faults) == 3


def test_a_typo_changes_nothing_until_the_value_is_corrected_or_gone() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    before = cluster.kernel.meaning()
    cluster.apply(scheduled("rt", "10.0.0.1=2,"))
    assert cluster.kernel.meaning() == before
    cluster.apply(endpoint_slice(ONE, TWO, THREE))
    assert cluster.policies.schedule == Schedule.ROUND
    cluster.apply(service())
    assert cluster.policies.schedule == Schedule.RANDOM
    assert cluster.policies.pod.table == 0


def test_after_a_restart_a_typo_counts_as_no_annotation() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr"), endpoint_slice(ONE, TWO))
    cluster.apply(scheduled("rt"))
    cluster.restart()
    assert cluster.policies.schedule == Schedule.RANDOM
    assert cluster.planner.schedulings.fault(KEY)


# -- changes --


def test_another_kind_without_tables_changes_the_frontends_alone() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr"), endpoint_slice(ONE, TWO))
    before = cluster.generation
    (service_id,) = cluster.kernel.rounds
    cluster.apply(service())
    assert (cluster.generation, cluster.policies.schedule) == (before, Schedule.RANDOM)
    assert not cluster.kernel.rounds
    cluster.apply(scheduled("rr"))
    assert (cluster.generation, set(cluster.kernel.rounds)) == (before, {service_id})


def test_another_table_is_another_generation() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("wrr", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    before = cluster.generation
    cluster.apply(scheduled("wrr", "10.0.0.1=3"))
    assert cluster.generation > before
    assert {key[1] for key in cluster.kernel.tables} == {cluster.generation}
    places = cluster.kernel.table(cluster.kernel.frontends[VIP], cluster.policies.pod)
    assert sorted(places) == [0, 0, 0, 1]


def test_the_same_ratio_of_weights_is_no_change() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("wrr", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    before = cluster.generation
    cluster.apply(scheduled("wrr", "10.0.0.1=4,10.0.0.2=2"))
    assert cluster.generation == before


def test_a_quiesced_backend_keeps_its_counters_and_its_endpoint() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr"), endpoint_slice(ONE, TWO))
    counters = {one.address: one.counters_id for one in cluster.kernel.backends.values()}
    cluster.apply(scheduled("rr", "10.0.0.1=0"))
    assert {one.address: one.counters_id for one in cluster.kernel.backends.values()} == counters
    assert cluster.policies.pod.size == 1
    assert {entry.address for entry in +cluster.kernel.endpoints} == set(counters)


def test_a_client_with_affinity_has_no_position_at_a_quiesced_backend() -> None:
    cluster = Cluster()
    cluster.apply(
        scheduled("rr", "10.0.0.1=0", sessionAffinity="ClientIP"), endpoint_slice(ONE, TWO)
    )
    slots = {entry.address: entry.slots for entry in cluster.kernel.positions.values()}
    pod = cluster.policies.pod
    assert slots[pack("10.0.0.2")] == (0, 0)
    assert all(slot >= pod.first + pod.size for slot in slots[pack("10.0.0.1")])


# -- restarts --

RESTORED = {
    "turns": ("rr", ""),
    "weighted turns": ("wrr", "10.0.0.1=2"),
    "a hash that refuses": ("sh", "10.0.0.1=0"),
    "a long table": ("mh", ""),
    "weights alone": ("", "node/there=5"),
}


@pytest.mark.parametrize(("scheduler", "weights"), RESTORED.values(), ids=RESTORED.keys())
def test_an_agent_that_restarts_finds_all_as_it_was(scheduler: str, weights: str) -> None:
    cluster = Cluster()
    cluster.apply(scheduled(scheduler, weights, **LOCAL), endpoint_slice(ONE, TWO, THREE))
    before = {one.name: dict(entries) for one, entries in cluster.kernel.maps.items()}
    cluster.restart()
    held = {one.name: dict(entries) for one, entries in cluster.kernel.maps.items()}
    assert held.pop(ENDPOINTS.name).keys() == before.pop(ENDPOINTS.name).keys()
    assert held == before


@pytest.mark.parametrize("scheduler", ["mh", "rr"])
def test_a_service_port_without_its_table_or_counter_is_not_restored(scheduler: str) -> None:
    cluster = Cluster()
    cluster.apply(scheduled(scheduler), endpoint_slice(ONE, TWO))
    held: dict[Any, Any] = cluster.kernel.tables if scheduler == "mh" else cluster.kernel.rounds
    del held[max(held)]
    successor = new_planner()
    successor.restore(cluster.kernel.read)
    assert list(successor.applied_state) == []


def test_a_table_that_differs_is_replaced_and_a_stray_is_removed() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("wrr", "10.0.0.1=2"), endpoint_slice(ONE, TWO))
    right, before = cluster.kernel.meaning(), cluster.generation
    (key,) = cluster.kernel.tables
    entry = cluster.kernel.tables[key]
    cluster.kernel.tables[key] = entry._replace(slots=bytes(256))  # type: ignore[arg-type]
    stray = entry._replace(generation=entry.generation - 1)
    cluster.kernel.tables[stray[:4]] = stray
    cluster.restart()
    assert cluster.kernel.meaning() == right
    assert cluster.generation > before
    assert {each[1] for each in cluster.kernel.tables} == {cluster.generation}


def test_a_counter_of_turns_that_nobody_needs_is_removed_and_one_that_is_needed_stays() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr"), endpoint_slice(ONE, TWO))
    (rounds,) = cluster.kernel.rounds.values()
    cluster.apply(service())
    cluster.kernel.rounds[rounds.service_id] = rounds
    cluster.restart()
    assert not cluster.kernel.rounds
    cluster.kernel.rounds[rounds.service_id] = rounds
    cluster.planner.cache.apply([scheduled("rr")], ())
    cluster.restart()
    assert list(cluster.kernel.rounds) == [rounds.service_id]


def test_nothing_is_written_of_a_quiesced_backend_but_its_slot() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("rr", "10.0.0.1=0"), endpoint_slice(ONE, TWO))
    (one,) = cluster.planner.applied_state
    assert [entry.slot for entry in BACKENDS.entries(one)] == [0, 1]
    assert list(POSITIONS.entries(one)) == []
