"""From events to plans: Services that are also affected, full maps, and the size of plans."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from bpfsvc.base.address import pack_network, unpack
from bpfsvc.base.errors import KernelError, MapFull
from bpfsvc.model import ModelObject, Node, ObjectKey, Port, Service, ServiceCIDR
from bpfsvc.services.entries import Frontend
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import FRONTENDS, SERVICES
from bpfsvc.services.rules import desired
from bpfsvc.services.rules.context import ServiceConfig
from tests.services import crowd
from tests.services.kernel import Kernel, new_planner, restore_from
from tests.services.objects import CONFIG, endpoint_slice, frontend, service

SHARED = frontend("80.0.0.1 80")
ONE, TWO, THREE = (f"10.0.0.{number} here" for number in (1, 2, 3))


class Cluster:
    """A planner and a kernel that always succeeds."""

    def __init__(self, *, max_backends: int = 100, at_once: int = 500) -> None:
        self.kernel = Kernel()
        self.planner: Planner = new_planner(max_backends=max_backends, at_once=at_once)

    def apply(self, *puts: ModelObject, gone: tuple[str, ...] = ()) -> None:
        keys = [ObjectKey("Service", "default", name) for name in gone]
        touched = self.planner.cache.apply(puts, keys)
        self.kernel.sync(self.planner, touched, Random(1))

    def retry(self) -> None:
        self.kernel.sync(self.planner, set(self.planner.refused), Random(1))

    def backends(self) -> list[str]:
        return sorted(unpack(entry.address) for entry in self.kernel.backends.values())

    def owner(self, one: Frontend) -> str:
        return self.kernel.names[self.kernel.frontends[one].service_id].port.name


def claimant(name: str) -> ModelObject:
    return service(name, clusterIP=f"10.96.0.{ord(name)}", externalIPs=["80.0.0.1"])


def test_a_frontend_passes_from_owner_to_owner_without_a_gap() -> None:
    """``Kernel.sync`` fails if the entry is missing after any single operation."""
    cluster = Cluster(at_once=1)
    cluster.apply(claimant("b"))
    assert cluster.owner(SHARED) == "b"
    cluster.apply(claimant("a"))
    assert cluster.owner(SHARED) == "a"
    cluster.apply(gone=("a",))
    assert cluster.owner(SHARED) == "b"


def test_a_cluster_ip_passes_from_a_claimant_to_its_service_and_back_without_a_gap() -> None:
    cluster, cluster_ip = Cluster(at_once=1), frontend("10.96.0.1 80")
    cluster.apply(service("before", clusterIP="10.96.0.9", externalIPs=["10.96.0.1"]))
    assert cluster.owner(cluster_ip) == "before"
    cluster.apply(service("main", clusterIP="10.96.0.1"))
    assert cluster.owner(cluster_ip) == "main"
    cluster.apply(gone=("main",))
    assert cluster.owner(cluster_ip) == "before"


def test_a_service_that_does_not_fit_keeps_its_entries_and_others_continue() -> None:
    cluster = Cluster(max_backends=2)
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    cluster.apply(endpoint_slice(ONE, TWO, THREE, of="a"))
    (error,) = cluster.planner.refused.values()
    assert isinstance(error, MapFull)
    assert [one.size for one in cluster.planner.applied_state] == [1]
    cluster.apply(service("b", clusterIP="10.96.0.2"), endpoint_slice(TWO, of="b", name="b-1"))
    assert [one.size for one in cluster.planner.applied_state] == [1, 1]


def test_a_service_that_does_not_fit_is_tried_again() -> None:
    cluster = Cluster(max_backends=2)
    cluster.apply(
        service("a"),
        service("b", clusterIP="10.96.0.2"),
        endpoint_slice(ONE, of="a"),
        endpoint_slice(ONE, of="b", name="b-1"),
    )
    cluster.apply(endpoint_slice(ONE, TWO, of="a"))
    assert cluster.planner.refused
    cluster.apply(gone=("b",))
    cluster.retry()
    assert not cluster.planner.refused
    assert [one.size for one in cluster.planner.applied_state] == [2]


class Frontends:
    """A map of frontends with room for some; it counts the plans that it is given."""

    def __init__(self, room: int) -> None:
        self.room, self.plans = room, 0

    def write(self, plan: Plan) -> None:
        self.plans += 1
        room = self.room - len(plan.puts(FRONTENDS))
        if room < 0:
            raise MapFull("map frontends is full", "enlarge it", FRONTENDS.name)
        self.room = room + len(plan.deletes(FRONTENDS))


def with_frontends(number: int, count: int) -> ModelObject:
    """Return a Service with so many frontends; two are its cluster IP's, one for other ports."""
    addresses = [f"80.0.{number}.{last}" for last in range(2, count)]
    return service(f"s-{number}", clusterIP=f"10.96.1.{number}", externalIPs=addresses)


def test_a_full_map_refuses_many_services_but_is_not_asked_for_each_of_them() -> None:
    """After each refusal the whole kernel is compared: that took minutes, and again at retries."""
    planner, kernel = new_planner(max_backends=100), Frontends(room=2)
    large = [with_frontends(number, 3 + number % 2) for number in range(1, 200)]
    touched = planner.cache.apply([*large, with_frontends(200, 2)], [])
    planner.sync(touched, 0, kernel.write)
    assert (len(planner.refused), kernel.room) == (199, 0), "only the smallest has room"
    assert kernel.plans <= 1 + 4
    assert {str(error) for error in planner.refused.values()} == {
        "map frontends is full (enlarge it)"
    }


def test_services_are_tried_again_when_a_full_map_has_room() -> None:
    planner, kernel = new_planner(max_backends=100), Frontends(room=2)
    touched = planner.cache.apply([with_frontends(number, 2) for number in range(1, 20)], [])
    planner.sync(touched, 0, kernel.write)
    assert len(planner.refused) == 18
    (applied,) = planner.applied_state.keys()
    planner.sync(planner.cache.apply([], [ObjectKey("Service", *applied)]), 0, kernel.write)
    assert kernel.room == 2
    planner.sync(set(planner.refused), 0, kernel.write)
    assert (len(planner.refused), kernel.room) == (17, 0)


def test_of_two_services_in_one_plan_only_the_one_without_room_is_refused() -> None:
    planner, kernel = new_planner(max_backends=100), Frontends(room=2)
    touched = planner.cache.apply([with_frontends(1, 2), with_frontends(2, 3)], [])
    planner.sync(touched, 0, kernel.write)
    assert planner.refused.keys() == {("default", "s-2")}


def test_a_single_service_without_room_is_written_once() -> None:
    planner, kernel = new_planner(max_backends=100), Frontends(room=2)
    planner.sync(planner.cache.apply([with_frontends(1, 3)], []), 0, kernel.write)
    assert (len(planner.refused), kernel.plans) == (1, 1)


def test_what_had_no_room_is_asked_for_again_in_the_next_sync() -> None:
    """The map may have room meanwhile without any plan of this agent."""
    planner, kernel = new_planner(max_backends=100), Frontends(room=0)
    planner.sync(planner.cache.apply([with_frontends(1, 2)], []), 0, kernel.write)
    kernel.room = 2
    planner.sync(set(planner.refused), 0, kernel.write)
    assert (dict(planner.refused), kernel.room) == ({}, 0)


def test_a_refused_service_gives_its_counters_back() -> None:
    planner, kernel = new_planner(max_backends=2), Frontends(room=2)
    slices = [endpoint_slice(ONE, TWO, of=f"s-{number}", name=f"s-{number}-1") for number in (1, 2)]
    planner.sync(planner.cache.apply([with_frontends(1, 3), slices[0]], []), 0, kernel.write)
    assert planner.refused
    planner.sync(planner.cache.apply([with_frontends(2, 2), slices[1]], []), 0, kernel.write)
    assert planner.refused.keys() == {("default", "s-1")}


def test_a_sync_says_whether_it_has_made_room() -> None:
    cluster = Cluster()
    planner, write = cluster.planner, partial(cluster.kernel.execute, random=Random(1))
    first = planner.cache.apply([service("a"), endpoint_slice(ONE, of="a")], [])
    assert not planner.sync(first, 0, write).freed
    gone = planner.cache.apply([], [ObjectKey("Service", "default", "a")])
    assert planner.sync(gone, 0, write).freed


def test_a_sync_that_replaces_an_endpoint_by_another_makes_no_room() -> None:
    cluster = Cluster()
    planner, write = cluster.planner, partial(cluster.kernel.execute, random=Random(1))
    planner.sync(planner.cache.apply([service("a"), endpoint_slice(ONE, of="a")], []), 0, write)
    replaced = planner.cache.apply([endpoint_slice(TWO, of="a")], [])
    assert not planner.sync(replaced, 0, write).freed
    assert cluster.backends() == ["10.0.0.2"]


def test_services_held_back_that_have_strays_are_spared_as_a_whole() -> None:
    cluster = Cluster()
    for name in "abc":
        cluster.apply(service(name, clusterIP=f"10.96.0.{ord(name)}"))
    ids = {entry.port.name: key for key, entry in cluster.kernel.names.items()}
    stray = next(iter(cluster.kernel.frontends.values()))
    for name in "ab":
        at = frontend(f"80.0.0.{ord(name)} 80")
        cluster.kernel.frontends[at] = stray._replace(
            frontend=at, service_id=ids[name], generation=0
        )
    restarted = new_planner()
    restore_from(cluster.kernel, restarted)
    restarted.held_back = {("default", "a"), ("default", "c")}
    assert restarted.spared_ids() == {ids["a"]}


def test_strays_that_are_deleted_make_room() -> None:
    cluster = Cluster()
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    restarted = new_planner()
    restore_from(cluster.kernel, restarted)
    assert not cluster.kernel.sync(cluster.planner, set(), Random(1)).freed
    assert cluster.kernel.sync(restarted, None, Random(1)).freed


def test_a_frontend_whose_new_owner_has_no_room_is_deleted_with_its_old_owner() -> None:
    cluster = Cluster(max_backends=1)
    cluster.apply(claimant("b"), endpoint_slice(ONE, of="b"))
    cluster.apply(claimant("a"), endpoint_slice(ONE, TWO, of="a", name="a-1"))
    assert cluster.planner.refused.keys() == {("default", "a")}
    cluster.apply(gone=("b",))
    assert SHARED not in cluster.kernel.frontends


def test_a_service_that_does_not_fit_still_releases_frontends_that_others_own() -> None:
    """Otherwise the planner would believe later that the lost frontend is still written."""
    cluster = Cluster(max_backends=1)
    cluster.apply(claimant("b"), endpoint_slice(ONE, of="b"))
    cluster.apply(claimant("a"), endpoint_slice(ONE, TWO, of="b"))
    assert ("default", "b") in cluster.planner.refused
    assert cluster.owner(SHARED) == "a"
    cluster.apply(endpoint_slice(ONE, of="b"), gone=("a",))
    assert cluster.owner(SHARED) == "b"


def test_changed_settings_hold_for_the_next_plans() -> None:
    """For example, pods can be recognised only when the Node object has arrived."""
    cluster = Cluster()
    cluster.planner.config = replace(CONFIG, detector_v4=False)
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    cluster_ip = frontend("10.96.0.1 80")
    assert not cluster.kernel.frontends[cluster_ip].policies.other.masquerade
    cluster.planner.config = CONFIG
    cluster.kernel.sync(cluster.planner, None, Random(1))
    assert cluster.kernel.frontends[cluster_ip].policies.other.masquerade


def test_another_zone_changes_every_service() -> None:
    cluster = Cluster()
    near, far = f"{ONE} zone-a@", f"{TWO} zone-b@"
    cluster.apply(service("a"), endpoint_slice(near, far, of="a"), Node("here", "zone-a"))
    assert cluster.backends() == ["10.0.0.1"]
    cluster.apply(Node("here", "zone-b"))
    assert cluster.backends() == ["10.0.0.2"]


def test_labels_remove_a_service_and_its_slices_and_add_them_again() -> None:
    cluster, cluster_ip = Cluster(), frontend("10.96.0.1 80")
    elsewhere = {"service.kubernetes.io/service-proxy-name": ""}
    headless = {"service.kubernetes.io/headless": ""}
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    cluster.apply(service("a", labels=elsewhere))
    assert not cluster.kernel.frontends
    cluster.apply(service("a"))
    assert cluster.backends() == ["10.0.0.1"]
    cluster.apply(endpoint_slice(ONE, of="a", labels=headless))
    assert cluster.kernel.frontends[cluster_ip].policies.other.reject
    cluster.apply(endpoint_slice(ONE, of="a"))
    assert cluster.backends() == ["10.0.0.1"]


def test_service_networks_that_hold_all_of_ipv4_are_left_out() -> None:
    """IPv4 is a part of IPv6 in the kernel's maps."""
    cluster = Cluster()
    cidrs = ("10.96.0.0/16", "fd96::/112", "::/0", "0.0.0.0/0")
    cluster.apply(ServiceCIDR("kubernetes", tuple(map(pack_network, cidrs))))
    networks = {(unpack(one.address), one.bits) for one in cluster.planner.service_networks()}
    assert networks == {("10.96.0.0", 112), ("fd96::", 112), ("0.0.0.0", 96)}


def test_many_services_are_written_in_several_plans() -> None:
    planner = new_planner(at_once=2)
    touched = planner.cache.apply(
        [service(name, clusterIP=f"10.96.0.{ord(name)}") for name in "abcde"], ()
    )
    plans: list[Plan] = []
    planner.sync(touched, 0, plans.append)
    assert [len(plan.puts(SERVICES)) for plan in plans] == [2, 2, 1]


def test_the_frontends_of_a_service_are_found_once_in_a_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = new_planner(at_once=2)
    names: list[str] = []
    of_port = desired._frontends

    def counted(service: Service, port: Port, ip: bytes, config: ServiceConfig) -> list[Any]:
        names.append(service.name)
        return of_port(service, port, ip, config)

    monkeypatch.setattr(desired, "_frontends", counted)
    touched = planner.cache.apply(
        [service(name, clusterIP=f"10.96.0.{ord(name)}") for name in "abcde"], ()
    )
    planner.sync(touched, 0, lambda _: None)
    assert sorted(names) == [*"abcde"]
    names.clear()
    planner.sync([("default", "a")], 0, lambda _: None)
    assert names == ["a"]


def test_the_first_sync_of_many_services_needs_little_memory_beyond_what_it_keeps() -> None:
    planner = new_planner(at_once=5)
    ports = [{"name": f"port-{number}", "port": number} for number in range(1, 9)]
    many = [
        service(f"s-{number}", clusterIP=f"10.96.0.{number}", ports=ports)
        for number in range(1, 200)
    ]
    planner.cache.apply(many, ())
    _, kept, peak = crowd.measured(lambda: planner.sync_all(0, lambda _: None))
    assert peak < 1.1 * kept


def _fail(_: Plan) -> None:
    raise KernelError("map frontends: cannot write")


def test_a_plan_that_failed_does_not_change_the_applied_state() -> None:
    planner = new_planner()
    planner.cache.apply([service()], ())
    with pytest.raises(KernelError):
        planner.sync_all(0, _fail)
    assert not list(planner.applied_state)
