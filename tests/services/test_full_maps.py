"""Which Services a full map refuses in a sync of many, in every order of the Services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bpfsvc.base.errors import MapFull
from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import FRONTENDS, SERVICES, SOURCE_RANGES
from bpfsvc.services.service_map import ServiceMap
from tests.services.kernel import new_planner
from tests.services.objects import endpoint_slice, service

OLD, NEW = range(1, 21), range(21, 41)
"""Numbers of Services. In any order, some of one group come between some of the other group."""


class FullMap:
    """A kernel with a map that refuses all new Services, or only the first that is written."""

    def __init__(self, service_map: ServiceMap[Any], *, always: bool = True) -> None:
        self._map, self._is_full, self._always = service_map, True, always

    def write(self, plan: Plan) -> None:
        if self._is_full and plan.puts(SERVICES) and plan.puts(self._map):
            self._is_full = self._always
            raise MapFull(f"map {self._map.name} is full", "enlarge it", self._map.name)


def plain(number: int) -> ModelObject:
    return service(f"s-{number}", clusterIP=f"10.96.0.{number}")


def restricted(number: int) -> ModelObject:
    return service(
        f"s-{number}",
        type="LoadBalancer",
        clusterIP=f"10.96.0.{number}",
        ingress=({"ip": f"80.0.0.{number}"},),
        loadBalancerSourceRanges=["10.0.0.0/8"],
    )


def with_endpoint(number: int, address: str) -> ModelObject:
    return endpoint_slice(f"{address} here", of=f"s-{number}", name=f"s-{number}-1")


def keys(numbers: Iterable[int]) -> set[ServiceKey]:
    return {("default", f"s-{number}") for number in numbers}


def with_old_services() -> Planner:
    """Return a planner that has written the old Services, and writes Services one by one."""
    planner = new_planner(at_once=1)
    slices = [with_endpoint(number, "10.0.0.1") for number in OLD]
    planner.sync(planner.cache.apply([*map(plain, OLD), *slices], ()), 0, lambda _: None)
    return planner


def test_a_full_map_is_asked_again_once_a_removal_in_the_same_sync_has_made_room() -> None:
    planner, kernel = with_old_services(), FullMap(FRONTENDS, always=False)
    gone = [ObjectKey("Service", *key) for key in keys(OLD)]
    planner.sync(planner.cache.apply([*map(plain, NEW)], gone), 0, kernel.write)
    assert 0 < len(planner.refused) < len(NEW)


def test_an_old_service_whose_endpoint_is_replaced_is_not_refused_for_a_full_map() -> None:
    planner, kernel = with_old_services(), FullMap(FRONTENDS)
    slices = [with_endpoint(number, "10.0.0.2") for number in OLD]
    planner.sync(planner.cache.apply([*map(plain, NEW), *slices], ()), 0, kernel.write)
    assert planner.refused.keys() == keys(NEW)


def test_a_new_service_without_entries_in_a_full_map_is_not_refused() -> None:
    planner, kernel = new_planner(at_once=1), FullMap(SOURCE_RANGES)
    puts = [*map(plain, OLD), *map(restricted, NEW)]
    planner.sync(planner.cache.apply(puts, ()), 0, kernel.write)
    assert planner.refused.keys() == keys(NEW)
