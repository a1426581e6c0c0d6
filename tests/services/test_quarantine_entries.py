"""What is written of a Service while endpoints of it are in quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from bpfsvc.base.address import unpack
from bpfsvc.model import EndpointSlice, ObjectKey, Service
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Policies
from bpfsvc.services.scheduling.quarantine import Outcome
from bpfsvc.services.scheduling.schedulers import NO_SLOT
from tests.services.kernel import Kernel, new_planner
from tests.services.objects import HTTP, endpoint_slice, frontend, service
from tests.services.test_quarantine import KEY, A, B, C, D, place


def quarantined(**annotations: str) -> Service:
    said = {"quarantine": "1 failure/10s for 30s", **annotations}
    return service(annotations={f"bpfsvc.io/{name}": text for name, text in said.items()})


class Cluster:
    """A planner whose plans are written to a model of the kernel, and what the agent does."""

    def __init__(self, *things: Service | EndpointSlice) -> None:
        self.kernel = Kernel()
        self.planner = new_planner()
        self.apply(*things)

    def apply(self, *things: Service | EndpointSlice) -> None:
        self.sync(self.planner.cache.apply(things, ()))

    def sync(self, touched: set[ServiceKey]) -> None:
        self.synced = self.kernel.sync(self.planner, touched, Random(1))
        for key, summary in self.synced.summaries.items():
            if summary.watched is not None:
                self.planner.schedulings.quarantines.set_groups(key, summary.watched)

    def at(self, now: float, *, failed: Iterable[str] = (), worked: Iterable[str] = ()) -> None:
        outcomes = {place(one): Outcome(1, 0) for one in failed}
        outcomes |= {place(one): Outcome(0, 1) for one in worked}
        changes = self.planner.schedulings.quarantines.step(now, {KEY: outcomes})
        self.sync({one.service for one in changes})

    def policies(self, words: str = "10.96.0.1 80") -> Policies:
        (applied,) = self.planner.applied_state.of(KEY).values()
        return dict(applied.frontend_items())[frontend(words)]

    def used(self, words: str = "10.96.0.1 80") -> list[str]:
        """Return the endpoints that clients outside are sent to."""
        (applied,) = self.planner.applied_state.of(KEY).values()
        policy = self.policies(words).other
        addresses = [unpack(one.address) for one in applied.backends()]
        return addresses[policy.first : policy.first + policy.size]

    def tried(self, words: str = "10.96.0.1 80") -> list[str]:
        """Return the endpoints that get one connection at a time of clients outside."""
        (applied,) = self.planner.applied_state.of(KEY).values()
        policy = self.policies(words).other
        behind = policy.first + policy.size
        addresses = [unpack(one.address) for one in applied.backends()]
        return addresses[behind : behind + policy.trials]


TWO = endpoint_slice(f"{A} here", f"{B} there")


@pytest.mark.parametrize(
    "scheduler",
    [
        *("random", "rr", "wrr", "sh", "sh,sh-port", "dh", "mh"),
        *("lc", "wlc", "sed", "nq", "fo", "ovf", "twos"),
    ],
)
def test_by_every_scheduler_only_the_others_are_chosen_meanwhile(scheduler: str) -> None:
    cluster = Cluster(
        quarantined(scheduler=scheduler), endpoint_slice(*(f"{x} here" for x in (A, B, C)))
    )
    before = cluster.used()
    assert set(before) == {A, B, C}
    cluster.at(0, failed=[B])
    assert set(cluster.used()) == {A, C}
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    assert {unpack(one.address) for one in applied.backends()} == {A, B, C}
    chunks = [chunk for _, _, chunk in applied.extra.get("schedule_tables", ())]
    places = [slot for chunk in chunks for slot in memoryview(chunk).cast("H")]
    length = cluster.policies().other.table
    assert NO_SLOT not in places[:length], "a client would be refused"
    assert cluster.policies().other.reject is (scheduler == "ovf")
    without, tables = cluster.used(), applied.extra
    assert cluster.tried() == []
    cluster.at(30)
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    assert (cluster.used(), cluster.tried()) == (without, [B])
    assert applied.extra == tables, "its clients go elsewhere in the trial, too"
    cluster.at(31, worked=[B])
    assert (cluster.used(), cluster.tried()) == (before, [])


def test_on_trial_an_endpoint_has_one_slot_more_than_those_that_are_chosen() -> None:
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[B])
    cluster.at(30)
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    assert [unpack(one.address) for one in applied.backends()] == [A, B]
    cluster.at(31, failed=[B])
    assert (cluster.used(), cluster.tried()) == ([A], [])


def test_of_several_on_trial_each_may_be_tried() -> None:
    cluster = Cluster(quarantined(), endpoint_slice(*(f"{x} here" for x in (A, B, C, D))))
    cluster.at(0, failed=[D, B])
    cluster.at(30)
    assert cluster.used() == [A, C]
    assert cluster.tried() == [B, D]
    cluster.at(31, worked=[B])
    assert cluster.used() == [A, B, C]
    assert cluster.tried() == [D]


def test_an_endpoint_on_trial_is_used_by_all_if_another_one_leaves() -> None:
    """A client is never refused because of a quarantine, and never more than half are out."""
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[A])
    cluster.at(30)
    assert (cluster.used(), cluster.tried()) == ([B], [A])
    cluster.at(31, failed=[B])
    assert (cluster.used(), cluster.tried()) == ([A], [])
    cluster.at(32, worked=[A])
    cluster.at(61)
    assert (cluster.used(), cluster.tried()) == ([A], [B])
    cluster.apply(endpoint_slice(f"{B} there"))
    assert (cluster.used(), cluster.tried()) == ([B], [])


def test_source_hashing_moves_only_the_clients_of_the_endpoint_that_left() -> None:
    cluster = Cluster(
        quarantined(scheduler="sh"), endpoint_slice(*(f"{x} here" for x in (A, B, C, D)))
    )
    cluster.at(0, failed=[B])
    (applied,) = cluster.planner.applied_state.of(KEY).values()
    slots = [
        slot
        for _, _, chunk in applied.extra["schedule_tables"]
        for slot in memoryview(chunk).cast("H")
    ]
    used = cluster.used()
    moved = [number for number in range(256) if used[slots[number]] != (A, B, C, D)[number % 4]]
    assert moved == [number for number in range(256) if number % 4 == 1]


def test_its_connections_are_counted_meanwhile_as_those_of_weight_0_are() -> None:
    cluster = Cluster(quarantined(), TWO)
    (before,) = cluster.planner.applied_state.of(KEY).values()
    cluster.at(0, failed=[A])
    (after,) = cluster.planner.applied_state.of(KEY).values()
    assert after.counters() == before.counters()


def test_an_endpoint_of_weight_0_is_not_one_of_those_that_are_left() -> None:
    cluster = Cluster(quarantined(weights=f"{B}=0"), TWO)
    cluster.at(0, failed=[A])
    assert cluster.used() == [A]


def test_the_only_endpoint_of_this_node_stays_for_clients_that_are_bound_to_it() -> None:
    local = service(
        annotations={"bpfsvc.io/quarantine": "1 failure/10s for 30s"},
        type="NodePort",
        externalTrafficPolicy="Local",
        ports=[{**HTTP, "nodePort": 30080}],
    )
    cluster = Cluster(local, endpoint_slice(f"{A} here", f"{B} there", f"{C} there"))
    cluster.at(0, failed=[A])
    assert cluster.used("node4 30080") == [A]
    cluster.at(1, failed=[B])
    assert cluster.used() == [A, C]


def test_an_endpoint_is_tried_by_each_set_of_clients_that_it_has_left() -> None:
    local = service(
        annotations={"bpfsvc.io/quarantine": "1 failure/10s for 30s"},
        type="NodePort",
        externalTrafficPolicy="Local",
        ports=[{**HTTP, "nodePort": 30080}],
    )
    cluster = Cluster(local, endpoint_slice(f"{A} here", f"{B} here", f"{C} there"))
    cluster.at(0, failed=[A])
    cluster.at(30)
    assert (cluster.used(), cluster.tried()) == ([B, C], [A])
    assert (cluster.used("node4 30080"), cluster.tried("node4 30080")) == ([B], [A])
    cluster.apply(endpoint_slice(f"{A} here", f"{B} there", f"{C} there"))
    assert (cluster.used(), cluster.tried()) == ([B, C], [A])
    assert (cluster.used("node4 30080"), cluster.tried("node4 30080")) == ([A], [])


def test_an_endpoint_that_leaves_meanwhile_leaves_nobody_without_one() -> None:
    """The plan that follows from the change comes before the next look at the clock."""
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[A])
    assert cluster.used() == [B]
    cluster.apply(endpoint_slice(f"{A} here"))
    assert cluster.used() == [A]


def test_only_tcp_is_watched_and_only_with_the_annotation() -> None:
    dns = {"name": "dns", "port": 53, "protocol": "UDP"}
    ports = [HTTP, dns]
    both = ({"name": "http", "port": 8080}, {"name": "dns", "port": 8080, "protocol": "UDP"})
    slices = endpoint_slice(f"{A} here", f"{B} there", ports=both)
    said = {"bpfsvc.io/quarantine": "1 failure/10s for 30s"}
    cluster = Cluster(service(ports=ports, annotations=said), slices)

    def found() -> dict[str, tuple[bool, int]]:
        return {
            port.port_name: (policies.watched, policies.pod.size)
            for port, one in cluster.planner.applied_state.of(KEY).items()
            for at, policies in one.frontend_items()
            if at.port
        }

    assert found() == {"http": (True, 2), "dns": (False, 2)}
    cluster.at(0, failed=[A])
    assert found() == {"http": (True, 1), "dns": (False, 2)}
    cluster.apply(service(ports=ports))
    assert found() == {"http": (False, 2), "dns": (False, 2)}


def test_a_typo_keeps_the_last_rule_and_who_is_out() -> None:
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[A])
    cluster.apply(quarantined(quarantine="often"))
    assert "bpfsvc.io/quarantine: 'often' must be like" in cluster.planner.schedulings.fault(KEY)
    assert cluster.used() == [B]


def test_a_service_that_is_deleted_begins_anew() -> None:
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[A])
    cluster.sync(cluster.planner.cache.apply((), [ObjectKey("Service", *KEY)]))
    cluster.apply(quarantined())
    assert cluster.used() == [A, B]


@pytest.mark.parametrize("left", [{}, {"bpfsvc.io/scheduler": "rr"}], ids=["none", "another"])
def test_a_service_that_loses_the_annotation_and_gets_it_again_begins_anew(
    left: dict[str, str],
) -> None:
    cluster = Cluster(quarantined(), TWO)
    cluster.at(0, failed=[A])
    assert cluster.used() == [B]
    cluster.apply(service(annotations=left))
    assert cluster.used() == [A, B]
    cluster.apply(quarantined())
    assert cluster.used() == [A, B]


def test_only_ports_of_tcp_name_endpoints_to_watch() -> None:
    said = {"bpfsvc.io/quarantine": "1 failure/10s for 30s"}
    dns = {"name": "dns", "port": 53, "protocol": "UDP"}
    ports = ({"name": "dns", "port": 8080, "protocol": "UDP"},)
    cluster = Cluster(
        service(ports=[dns], annotations=said),
        endpoint_slice(f"{A} here", f"{B} there", ports=ports),
    )
    assert cluster.synced.summaries[KEY].watched == frozenset()


def test_a_service_without_the_annotation_is_not_watched() -> None:
    cluster = Cluster(service(), TWO)
    assert cluster.policies().watched is False
    assert cluster.synced.summaries[KEY].watched is None
