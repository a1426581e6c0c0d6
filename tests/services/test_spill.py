"""What is written where connections may spill over from the endpoints that topology chose."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from bpfsvc.model import EndpointSlice, Node, Service
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.restore import restore
from bpfsvc.services.scheduling.maps import SPILLS, Among, SpillEntry, among
from bpfsvc.services.scheduling.quarantine import Outcome
from bpfsvc.services.scheduling.schedulers import Schedule
from bpfsvc.services.scheduling.spill import can_spill, overload_text, parse_overload, sample
from tests.services.cluster import Cluster
from tests.services.objects import HTTP, endpoint_slice, frontend, service
from tests.services.test_quarantine import KEY, place

HERE = [f"10.0.0.{at} here zone-a@" for at in (1, 2)]
THERE = [f"10.0.0.{at} there zone-b@" for at in (3, 4, 5, 6)]
PODS = endpoint_slice(*HERE, *THERE)
CLUSTER_IP, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
OUTSIDE: dict[str, Any] = {"type": "NodePort", "ports": [HTTP | {"nodePort": 30080}]}


def spilling(overload: str | None = "1.5", **parts: Any) -> Service:
    """Return the Service; what is no field of ``spec`` are annotations."""
    names = ("scheduler", "weights", "quarantine")
    said = {f"bpfsvc.io/{name}": parts.pop(name) for name in names if name in parts}
    if overload is not None:
        said["bpfsvc.io/zone-overload"] = overload
    return service(annotations=said, **parts)


class Spilling(Cluster):
    """A cluster that has applied a Service and its endpoints."""

    def __init__(self, *things: Service | EndpointSlice) -> None:
        super().__init__()
        self.apply(Node("here", zone="zone-a"), *things)

    @property
    def entry(self) -> SpillEntry | None:
        """What was written of the Service, if anything."""
        assert len(self.kernel.maps[SPILLS]) < 2
        return next(iter(self.kernel.maps[SPILLS].values()), None)

    def at(self, one: Any = CLUSTER_IP) -> Policies:
        return self.kernel.frontends[one].policies

    def places(self, first: int, size: int) -> list[str]:
        """Return the last number of the addresses in some slots."""
        (applied,) = self.planner.applied_state.of(KEY).values()
        return [str(one.address[-1]) for one in applied.backends()[first : first + size]]

    def of(self, policy: Policy) -> list[str]:
        return self.places(policy.first, policy.size)


def test_clients_are_kept_to_their_zone_and_may_spill_over_to_all() -> None:
    cluster = Spilling(spilling(), PODS)
    policies, entry = cluster.at(), cluster.entry
    assert entry
    assert cluster.of(policies.pod) == ["1", "2"]
    assert cluster.places(entry.first, entry.size) == ["1", "2", "3", "4", "5", "6"]
    assert (entry.first, entry.near_first) == (0, 6)
    assert [one.spills for one in policies.by_class] == [True] * 3
    assert policies.counted
    assert (entry.overload, entry.inactive) == (1500, 0)
    # mean(near) > 1.5 mean(all): near / 2 > 1.5 (near + far) / 6, so near > far.
    assert (entry.near_factor, entry.far_factor) == (1, 1)
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    ids = applied.counters()
    numbers = [ids[place(f"10.0.0.{at}")] for at in range(1, 7)]
    assert entry.counters == (*numbers, *(0,) * 58)
    assert (entry.compared, entry.near) == (6, 2)


def test_without_the_annotation_nothing_is_written() -> None:
    cluster = Spilling(spilling(None), PODS)
    assert cluster.entry is None
    assert not cluster.at().counted
    pod, outside = Policy(0, 2, False, False), Policy(0, 2, True, False)
    assert cluster.at() == Policies(pod, outside, outside, echo=True)


@pytest.mark.parametrize(
    ("slice_of_pods", "overload"),
    [
        (endpoint_slice("10.0.0.1 here", "10.0.0.2 there"), "1.5"),
        (endpoint_slice("10.0.0.1 here zone-b@", "10.0.0.2 there zone-b@"), "1"),
        (endpoint_slice("10.0.0.1 here draining zone-a@", "10.0.0.2 there draining"), "1"),
        # 2 of 3 cannot have more than 1.5 times the mean.
        (endpoint_slice(*HERE, THERE[0]), "1.5"),
        (PODS, "3"),
    ],
)
def test_where_no_connection_can_spill_over_loads_are_counted_but_nothing_is_added(
    slice_of_pods: EndpointSlice, overload: str
) -> None:
    cluster = Spilling(spilling(overload), slice_of_pods)
    assert cluster.entry is None
    assert cluster.at().counted
    assert not any(one.spills for one in cluster.at().by_class)
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    assert applied.size == cluster.at().pod.size
    assert cluster.kernel.candidates


def test_a_service_with_other_annotations_alone_never_spills_over() -> None:
    cluster = Spilling(spilling(None, scheduler="rr"), PODS)
    assert cluster.entry is None
    assert [policy.spills for policy in cluster.at().by_class] == [False] * 3


def test_where_no_near_endpoint_may_be_chosen_clients_are_refused() -> None:
    cluster = Spilling(spilling(weights="10.0.0.1=0,10.0.0.2=0"), PODS)
    assert cluster.entry is None
    assert [policy[:4] for policy in cluster.at().by_class] == [(0, 0, False, True)] * 3


def test_the_policies_local_never_spill_over() -> None:
    internal = Spilling(spilling(internalTrafficPolicy="Local"), PODS)
    assert internal.entry is None
    external = Spilling(spilling(externalTrafficPolicy="Local", **OUTSIDE), PODS)
    pod, node, other = external.at(NODE_PORT).by_class
    # The endpoints on the node are those of its zone, too: the slots are the same, the policy not.
    assert external.of(pod) == external.of(node) == external.of(other) == ["1", "2"]
    assert (pod.spills, node.spills, other.spills) == (True, True, False)
    assert all(one.spills for one in external.at(CLUSTER_IP).by_class)
    assert external.at(NODE_PORT).counted


def test_clients_outside_spill_over_where_the_policy_is_cluster() -> None:
    cluster = Spilling(spilling(**OUTSIDE), PODS)
    assert [one.spills for one in cluster.at(NODE_PORT).by_class] == [True] * 3


@pytest.mark.parametrize("scheduler", [*("random", "rr", "sh", "mh", "lc", "wlc", "ovf", "lblc")])
def test_each_scheduler_has_tables_and_weights_of_both_sets(scheduler: str) -> None:
    cluster = Spilling(
        spilling(scheduler=scheduler, weights="10.0.0.1=2,10.0.0.2=3,10.0.0.3=0"), PODS
    )
    entry, near = cluster.entry, cluster.at().pod
    assert entry
    assert sorted(cluster.of(near)) == ["1", "2"]
    assert sorted(cluster.places(entry.first, entry.size)) == ["1", "2", "4", "5", "6"]
    tables = {one.first for one in cluster.kernel.tables.values()}
    has_tables = scheduler in ("random", "sh", "mh")
    assert tables == ({entry.first, near.first} if has_tables else set())
    assert bool(entry.table) == bool(near.table) == has_tables
    assert {one.first for one in cluster.kernel.candidates.values()} == {entry.first, near.first}
    # Only those that can be chosen are compared.
    assert (entry.compared, entry.near) == (5, 2)


def test_an_address_remembers_endpoints_for_each_of_the_sets() -> None:
    cluster = Spilling(spilling(scheduler="lblc", externalTrafficPolicy="Local", **OUTSIDE), PODS)
    assert {one.local for one in cluster.kernel.localities.values()} == {0, 1, 2}
    pod, _, other = cluster.at(NODE_PORT).by_class
    assert (among(pod), among(other)) == (2, 1)


def test_an_address_from_which_nothing_spills_over_remembers_no_far_endpoints() -> None:
    service_of_both = spilling(scheduler="lblc", internalTrafficPolicy="Local", **OUTSIDE)
    cluster = Spilling(service_of_both, PODS)
    kept = {(entry.address, entry.local) for entry in cluster.kernel.localities.values()}
    inside, outside = CLUSTER_IP.address, NODE_PORT.address
    assert kept == {(inside, Among.LOCAL), (outside, Among.ALL), (outside, Among.NEAR)}


def test_with_affinity_any_endpoint_that_serves_has_its_position() -> None:
    cluster = Spilling(
        spilling(
            sessionAffinity="ClientIP",
            externalTrafficPolicy="Local",
            **OUTSIDE,
        ),
        endpoint_slice(*HERE, "10.0.0.7 here zone-b@", *THERE),
    )
    entry, local = cluster.entry, cluster.at(NODE_PORT).other
    assert entry
    assert cluster.of(local) == ["1", "2", "7"]
    for one in cluster.kernel.positions.values():
        assert one.slots[0] in range(entry.first, entry.first + entry.size)
        if str(one.address[-1]) in cluster.of(local):
            assert one.slots[1] in range(local.first, local.first + local.size)


def test_an_endpoint_in_quarantine_is_in_neither_set() -> None:
    cluster = Spilling(spilling(quarantine="1 failure/10s for 30s"), PODS)
    quarantines = cluster.planner.schedulings.quarantines
    for key, summary in cluster.synced.summaries.items():
        assert summary.watched
        assert set(summary.watched) == {
            frozenset(place(f"10.0.0.{at}") for at in numbers)
            for numbers in ((1, 2), (1, 2, 3, 4, 5, 6))
        }
        quarantines.set_groups(key, summary.watched)
    failed = {place(f"10.0.0.{at}"): Outcome(1, 0) for at in (1, 4)}
    changed = quarantines.step(0, {KEY: failed})
    cluster.kernel.sync(cluster.planner, {one.service for one in changed}, Random(1))
    entry = cluster.entry
    assert entry
    assert cluster.of(cluster.at().pod) == ["2"]
    assert cluster.places(entry.first, entry.size) == ["2", "3", "5", "6"]
    assert (entry.compared, entry.near) == (4, 1)
    # After it, a connection tries each: the far one, which stands last, only if it spills over.
    changed = quarantines.step(31, {})
    cluster.kernel.sync(cluster.planner, {one.service for one in changed}, Random(1))
    near = cluster.at().pod
    assert (cluster.of(near), near.trials) == (["2"], 2)
    assert cluster.places(near.first + near.size, 2) == ["1", "4"]
    assert cluster.entry
    assert cluster.entry.far_trials == 1


def test_udp_counts_all_its_connections() -> None:
    port = {"name": "http", "port": 80, "protocol": "UDP"}
    pods = endpoint_slice(*HERE, *THERE, ports=({**port, "port": 8080},))
    cluster = Spilling(spilling(ports=[port]), pods)
    assert cluster.entry
    assert cluster.entry.inactive == 1


@pytest.mark.parametrize("scheduler", ["random", "rr", "wlc", "mh", "lblcr"])
def test_a_restarted_agent_writes_nothing_anew(scheduler: str) -> None:
    cluster = Spilling(spilling(scheduler=scheduler), PODS)
    before, generation = cluster.entry, cluster.generation
    cluster.restart()
    assert (cluster.entry, cluster.generation) == (before, generation)


def test_a_service_port_whose_entry_is_lost_is_written_anew_by_a_restarted_agent() -> None:
    cluster = Spilling(spilling(), PODS)
    assert len(restore(cluster.kernel.read, Ids(100)).applied) == 1
    cluster.kernel.maps[SPILLS].clear()
    assert not restore(cluster.kernel.read, Ids(100)).applied


@pytest.mark.parametrize(
    ("scheduler", "weights", "lost"),
    [("mh", "", "tables"), ("random", "10.0.0.3=5", "tables"), ("lc", "", "candidates")],
)
def test_a_service_port_that_lost_what_all_endpoints_need_is_written_anew(
    scheduler: str, weights: str, lost: str
) -> None:
    cluster = Spilling(spilling(scheduler=scheduler, weights=weights), PODS)
    assert cluster.entry
    first = cluster.entry.first
    entries: dict[Any, Any] = getattr(cluster.kernel, lost)
    assert len(restore(cluster.kernel.read, Ids(100)).applied) == 1
    for key in [key for key, entry in entries.items() if entry.first == first]:
        del entries[key]
    assert not restore(cluster.kernel.read, Ids(100)).applied


def test_a_bad_number_is_reported_and_the_last_good_one_stays() -> None:
    cluster = Spilling(spilling(), PODS)
    before = cluster.entry
    cluster.apply(spilling("much"))
    assert cluster.entry == before
    fault = cluster.planner.schedulings.fault(KEY)
    assert fault == (
        "annotation bpfsvc.io/zone-overload: 'much' must be a number from 1 to 100 with at most"
        " three decimals; the last good value stays in force"
    )
    cluster.apply(spilling("2"))
    assert cluster.planner.schedulings.fault(KEY) == ""
    assert cluster.entry
    assert cluster.entry.overload == 2000


def test_without_the_annotation_again_the_slots_are_what_they_were() -> None:
    cluster = Spilling(spilling(), PODS)
    cluster.apply(spilling(None))
    assert cluster.entry is None
    assert cluster.at().pod == Policy(0, 2, False, False)
    assert not cluster.at().counted
    assert not cluster.kernel.candidates


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [("1", 1000), ("1.0", 1000), ("1.5", 1500), (" 2.25 ", 2250), ("1.001", 1001), ("100", 100000)],
)
def test_a_number_is_read_exactly(text: str, thousandths: int) -> None:
    assert parse_overload(text) == thousandths
    assert parse_overload(overload_text(thousandths)) == thousandths


@pytest.mark.parametrize(
    "text",
    ["", "0.9", "0", "-1.5", "1,5", "1.", ".5", "1e1", "100.1", "101", "1.5x", "nan", "1.0001"],
)
def test_what_is_no_such_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a number from 1 to 100") as caught:
        parse_overload(text)
    assert json.dumps(str(caught.value)).count("\\n") == 0


def test_the_factors_say_what_the_means_say() -> None:
    random = Random(5)
    for _ in range(2000):
        near, far = random.randint(1, 40), random.randint(1, 24)
        overload = random.choice([1000, 1001, 1500, 2000, 3333, 10_000])
        if not can_spill(overload, near, near + far):
            continue
        found = sample(overload, near, far)
        assert (len(found.near), len(found.far)) == (near, far)
        for _ in range(10):
            of_near, of_far = random.randint(0, 500), random.randint(0, 500)
            over = 1000 * of_near * (near + far) > overload * near * (of_near + of_far)
            assert (of_near * found.near_factor > of_far * found.far_factor) == over


def test_of_many_endpoints_64_are_compared_and_stand_for_all() -> None:
    for near, far in ((1, 64), (100, 200), (64, 1), (1, 5000), (3000, 30000), (63, 2)):
        found = sample(1000, near, far)
        assert len(found.near) + len(found.far) == 64 or far < 64 - len(found.near)
        assert len(set(found.near)) == len(found.near) >= 1
        assert len(set(found.far)) == len(found.far) >= 1
        assert max(found.near) < near
        assert max(found.far) < far
        assert max(found.near_factor, found.far_factor) < 2**32
        # As many connections at each: nothing is overloaded. One more at each near one: it is.
        sums = len(found.near) * 1000, len(found.far) * 1000
        assert sums[0] * found.near_factor <= sums[1] * found.far_factor
        more = len(found.near) * 1100, len(found.far) * 1000
        assert more[0] * found.near_factor > more[1] * found.far_factor


def test_of_either_kind_there_is_a_share_and_one_at_least() -> None:
    for near, far, of_near, of_far in (
        *((1, 1000, 1, 63), (1000, 1, 63, 1), (500, 500, 32, 32), (16, 48, 16, 48)),
        (100, 300, 16, 48),
    ):
        found = sample(1000, near, far)
        assert (len(found.near), len(found.far)) == (of_near, of_far)


def test_factors_of_very_many_endpoints_have_32_bits_and_say_the_same() -> None:
    near, far, overload = 3, 100_003, 1009  # both prime
    found = sample(overload, near, far)
    exact = Fraction(63 * (1000 * (near + far) - overload * near), overload * far)
    assert max(found.near_factor, found.far_factor).bit_length() == 32
    assert found.near_factor / found.far_factor == pytest.approx(float(exact), rel=1e-6)


def test_ovf_keeps_the_order_of_weights_in_both_sets() -> None:
    cluster = Spilling(spilling(scheduler="ovf", weights="10.0.0.2=9,10.0.0.5=8"), PODS)
    entry = cluster.entry
    assert entry
    assert cluster.at().schedule == Schedule.OVF
    assert cluster.of(cluster.at().pod) == ["2", "1"]
    assert cluster.places(entry.first, entry.size)[:2] == ["2", "5"]
