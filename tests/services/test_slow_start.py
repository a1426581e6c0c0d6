"""New endpoints get a growing share of connections, by a clock that the test sets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.model import EndpointSlice, ObjectKey, Service, Traits
from bpfsvc.model.reading import read_object
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Backend
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule, Scheduler
from bpfsvc.services.scheduling.slow_start import FULL, STEPS, SlowStarts, gradual
from tests.services.kernel import Kernel, new_planner, restore_from
from tests.services.objects import endpoint_slice, frontend, raw_slice, service

KEY: ServiceKey = ("default", "web")
VIP = frontend("10.96.0.1 80")
SECONDS = 100
ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def slow(scheduler: str = "random", **annotations: str) -> Service:
    said = {"slow-start-seconds": str(SECONDS), "scheduler": scheduler, **annotations}
    return service(annotations={f"bpfsvc.io/{name}": text for name, text in said.items()})


def pods(*endpoints: str, name: str = "web-1") -> EndpointSlice:
    """Return a slice of endpoints written as ``10.0.0.1=a``: an address and the UID of its pod.

    After the UID may come a state, as in ``10.0.0.1=a unready``.
    """
    raw = raw_slice(
        *(f"{address.partition('=')[0]} here {state}" for address, _, state in _parts(endpoints)),
        name=name,
    )
    for entry, (address, _, _) in zip(raw["endpoints"], _parts(endpoints), strict=True):  # type: ignore[call-overload]
        uid = address.partition("=")[2]
        if uid:
            entry["targetRef"] = {"kind": "Pod", "uid": uid}
    (made,) = read_object(raw)
    assert isinstance(made, EndpointSlice)
    return made


def _parts(endpoints: tuple[str, ...]) -> list[tuple[str, str, str]]:
    return [each.partition(" ") for each in endpoints]


class Cluster:
    """A planner whose plans are written to a model of the kernel."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.planner = new_planner()

    def apply(self, now: float, *things: Service | EndpointSlice) -> None:
        self.sync(self.planner.cache.apply(things, ()), now)

    def at(self, now: float) -> None:
        """Plan what is to be planned again at some time, as the agent does."""
        self.sync(self.planner.schedulings.growing(now), now)

    def sync(self, touched: set[ServiceKey] | None, now: float) -> None:
        self.kernel.sync(self.planner, touched, Random(1), now)

    def restarted(self, now: float) -> Cluster:
        """Return the same with another agent, which knows what is in the kernel."""
        other = Cluster()
        other.kernel = self.kernel
        other.planner.cache.apply(self.planner.cache.objects(), ())
        restore_from(other.kernel, other.planner)
        other.sync(None, now)
        return other

    def shares(self) -> dict[str, float]:
        """Return the share of connections of each endpoint, by the entries in the kernel."""
        (applied,) = self.planner.applied_state.of(KEY).values()
        policies = dict(applied.frontend_items())[VIP]
        places = [
            slot
            for _, _, chunk in applied.extra.get("schedule_tables", ())
            for slot in memoryview(chunk).cast("H")
            if slot != NO_SLOT
        ]
        slots = Counter(places or range(policies.pod.size))
        addresses = [unpack(one.address) for one in applied.backends()]
        return {addresses[slot]: count / slots.total() for slot, count in slots.items()}


@pytest.mark.parametrize("scheduler", ["random", "rr", "wrr", "mh"])
def test_the_share_of_a_new_endpoint_grows_in_equal_steps(scheduler: str) -> None:
    cluster = Cluster()
    cluster.apply(0, slow(scheduler), pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares() == pytest.approx({ONE: 0.5, TWO: 0.5}, rel=0.01)
    cluster.apply(1000, pods(f"{ONE}=a", f"{TWO}=b", f"{THREE}=c"))
    found = []
    for step in range(STEPS):
        cluster.at(1000 + step * SECONDS / STEPS)
        found.append(cluster.shares()[THREE])
    wanted = [share / (2 * FULL + share) for share in range(1, FULL, 2)]
    assert found == pytest.approx(wanted, rel=0.03, abs=0.002)
    cluster.at(1000 + SECONDS)
    assert cluster.shares() == pytest.approx({ONE: 1 / 3, TWO: 1 / 3, THREE: 1 / 3}, rel=0.01)
    assert cluster.planner.schedulings.growing(1000 + SECONDS) == set()


def test_rr_takes_turns_by_weight_meanwhile_and_then_as_before() -> None:
    cluster = Cluster()
    cluster.apply(0, slow("rr"), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    policies = dict(applied.frontend_items())[VIP]
    assert (policies.schedule, policies.pod.table) == (Schedule.ROUND, FULL + 1)
    cluster.at(10 + SECONDS)
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    policies = dict(applied.frontend_items())[VIP]
    assert (policies.schedule, policies.pod.table) == (Schedule.ROUND, 0)


def test_weights_count_as_well() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(weights=f"{TWO}=3,{THREE}=0"), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b", f"{THREE}=c"))
    cluster.at(10 + SECONDS / 2)
    part = 3 * (FULL / 2 + 1)
    assert cluster.shares() == pytest.approx({ONE: FULL / (FULL + part), TWO: part / (FULL + part)})


@pytest.mark.parametrize("scheduler", ["sh", "dh"])
def test_where_a_share_cannot_grow_it_is_whole_at_once(scheduler: str) -> None:
    """``sh`` would move most clients at each step, and ``dh`` has no weights."""
    cluster = Cluster()
    cluster.apply(0, slow(scheduler), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}


def test_without_the_annotation_nothing_is_planned_again() -> None:
    cluster = Cluster()
    cluster.apply(0, service(), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}
    assert cluster.planner.schedulings.growing(1e9) == set()


def test_a_service_that_loses_the_annotation_begins_anew_when_it_has_the_annotation_again() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    cluster.apply(20, service(annotations={"bpfsvc.io/scheduler": "random"}))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}
    assert cluster.planner.schedulings.growing(1e9) == set()
    cluster.apply(30, slow())
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}


def test_all_endpoints_of_a_new_service_have_their_shares_at_once() -> None:
    cluster = Cluster()
    cluster.apply(10, slow(), pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}


def test_a_restart_of_the_agent_starts_nothing() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares()[TWO] < 0.1
    assert cluster.restarted(20).shares() == {ONE: 0.5, TWO: 0.5}


def test_a_pod_that_has_the_address_of_a_former_one_is_new() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a", f"{TWO}=b"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=c"))
    assert cluster.shares()[TWO] == 1 / (FULL + 1)


def test_a_pod_begins_when_it_is_ready_and_not_again_when_it_was_not_for_a_while() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b unready"))
    cluster.apply(500, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares()[TWO] == 1 / (FULL + 1)
    cluster.apply(500 + SECONDS / 2, pods(f"{ONE}=a", f"{TWO}=b unready"))
    cluster.apply(500 + 2 * SECONDS, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}


def test_a_pod_that_moves_to_another_slice_is_not_new() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a", f"{TWO}=b"))
    cluster.apply(10, pods(f"{ONE}=a"))
    cluster.apply(11, pods(f"{TWO}=b", name="web-2"))
    assert cluster.shares() == {ONE: 0.5, TWO: 0.5}


def test_an_endpoint_without_a_pod_is_known_by_its_address() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(ONE, f"{TWO}=b"))
    cluster.apply(10, pods(ONE, f"{TWO}=b", THREE))
    shares = cluster.shares()
    assert shares[ONE] == shares[TWO] == FULL * shares[THREE]


def test_a_pod_is_forgotten_when_it_has_been_gone_for_that_time() -> None:
    starts = SlowStarts()
    for now, listed in ((0, (ONE,)), (10, ()), (10 + SECONDS, ()), (11 + SECONDS, ())):
        starts.read(KEY, SECONDS, [endpoint_slice(*(f"{each} here" for each in listed))], now)
    shares = starts.read(KEY, SECONDS, [endpoint_slice(f"{ONE} here")], 12 + SECONDS)
    assert shares == {pack(ONE): 1}


def test_a_pod_that_is_back_in_time_is_not_new() -> None:
    starts = SlowStarts()
    for now, listed in ((1000, (ONE, TWO)), (1010, (TWO,)), (1010 + SECONDS, (TWO,))):
        starts.read(KEY, SECONDS, [endpoint_slice(*(f"{each} here" for each in listed))], now)
    back = [endpoint_slice(f"{ONE} here", f"{TWO} here")]
    assert not starts.read(KEY, SECONDS, back, 1011 + SECONDS)


@pytest.mark.parametrize(("scheduler", "name"), [("rr", "wrr"), ("wrr", "wrr"), ("sh", "sh")])
def test_new_endpoints_have_their_shares_also_where_all_are_new(scheduler: str, name: str) -> None:
    backends = [Backend(pack(one), 80, False) for one in (ONE, TWO)]
    shares = dict(zip(map(pack, (ONE, TWO)), (1, 3), strict=True))
    found, weights = gradual(Scheduler(scheduler), shares, [(one, 2) for one in backends])
    usual = {"rr": [1, 3], "wrr": [2, 6], "sh": [2, 2]}[scheduler]
    assert (found.name, weights) == (name, usual)


def test_without_a_new_endpoint_weights_stay_as_they_are() -> None:
    backends = [(Backend(pack(ONE), 80, False), 7)]
    assert gradual(Scheduler("rr"), {pack(TWO): 1}, backends) == (Scheduler("rr"), [7])


def test_a_service_is_due_at_each_step_and_not_between() -> None:
    starts = SlowStarts()
    both = [endpoint_slice(f"{ONE} here", f"{TWO} here")]
    starts.read(KEY, SECONDS, [endpoint_slice(f"{ONE} here")], 0)
    found = []
    for now in range(SECONDS + 5):
        if now == 0 or KEY in starts.due(now):
            starts.read(KEY, SECONDS, both, now)
            found.append(now)
    assert found == list(range(0, SECONDS + 1, SECONDS // STEPS))
    assert {later - earlier for earlier, later in pairwise(found)} == {SECONDS // STEPS}


def test_what_is_gone_is_forgotten_with_its_service() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a"))
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    gone = cluster.planner.cache.apply((), [ObjectKey("Service", *KEY)])
    cluster.sync(gone, 10)
    assert cluster.planner.schedulings.growing(1e9) == set()


def test_a_bad_number_of_seconds_keeps_the_last_good_one() -> None:
    cluster = Cluster()
    cluster.apply(0, slow(), pods(f"{ONE}=a"))
    cluster.apply(5, slow(**{"slow-start-seconds": "soon"}))
    assert cluster.planner.schedulings.fault(KEY) == (
        "annotation bpfsvc.io/slow-start-seconds: seconds must be 1 to 86400, not 'soon';"
        " the last good value stays in force"
    )
    cluster.apply(10, pods(f"{ONE}=a", f"{TWO}=b"))
    assert cluster.shares()[TWO] == 1 / (FULL + 1)


@pytest.mark.parametrize(
    ("uid", "kept"),
    [
        ("6f2d1c1e-8a57-4d0c-9d7b-1f0e2a3b4c5d", True),
        ("00000000-0000-0000-0000-000000000000", False),
        ("not-a-uid", True),
        ("", False),
    ],
)
def test_a_pod_is_known_by_16_bytes(uid: str, kept: bool) -> None:
    first, second = pods(f"{ONE}={uid}", f"{TWO}=b").identities()
    traits = first[1]
    assert isinstance(traits, Traits)
    assert [len(one[2]) for one in (first, second)] == [16, 16]
    assert (first[2] != pack(ONE)) == kept


def test_slices_without_pods_hold_no_uids() -> None:
    assert pods(ONE, TWO).uids == b""
