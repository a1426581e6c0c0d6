"""For any events in any order, every single write is safe and the end is the same."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.model import ModelObject, ObjectKey, Service, read_object
from bpfsvc.services.entries import Frontend, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import EndpointEntry, SourceRangeEntry
from bpfsvc.services.scheduling.maps import SCHEDULE_ROUNDS, SCHEDULE_TABLES
from tests.services.kernel import Kernel, new_planner, restore_from
from tests.services.objects import HTTP, raw_service, raw_slice

NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = [f"10.0.0.{number}" for number in range(1, 5)]
OUTSIDE = ["80.0.0.1", "80.0.0.2", "10.96.0.2"]
"""The last one is also the cluster IP of a Service."""


def read_one(raw: dict[str, object]) -> ModelObject:
    (made,) = read_object(raw)
    return made


RANGES = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8"])
AFFINITY: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [
        {},
        {"sessionAffinity": "ClientIP"},
        {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        },
    ]
)


SCHEDULERS: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [
        {},
        {"bpfsvc.io/scheduler": "rr"},
        {"bpfsvc.io/scheduler": "wrr", "bpfsvc.io/weights": "10.0.0.1=3,10.0.0.2=0"},
        {"bpfsvc.io/scheduler": "sh", "bpfsvc.io/weights": "node/here=0"},
        {"bpfsvc.io/scheduler": "mh", "bpfsvc.io/weights": "10.0.0.1=2"},
        {"bpfsvc.io/scheduler": "wlc", "bpfsvc.io/weights": "10.0.0.1=2,10.0.0.3=0"},
        {"bpfsvc.io/scheduler": "lblc"},
        {"bpfsvc.io/weights": "node/here=0,node/there=2"},
    ]
)
WEIGHT: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [{}, {}, {"bpfsvc.io/weight": "0"}, {"bpfsvc.io/weight": "2"}]
)


@st.composite
def services(draw: st.DrawFn) -> ModelObject:
    name = draw(NAMES)
    ports = draw(
        st.lists(
            st.sampled_from(
                [
                    HTTP,
                    HTTP | {"port": 8080},
                    HTTP | {"nodePort": 30080},
                    {"name": "renamed", "port": 80, "nodePort": 30080},
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                ]
            ),
            min_size=1,
            max_size=2,
            unique_by=lambda port: str(port["name"]),
        )
    )
    return read_one(
        raw_service(
            name,
            type=draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"])),
            clusterIP=f"10.96.0.{'abc'.index(name) + 1}",
            ports=ports,
            externalIPs=draw(st.lists(st.sampled_from(OUTSIDE), max_size=2, unique=True)),
            externalTrafficPolicy=draw(st.sampled_from(["Cluster", "Local"])),
            internalTrafficPolicy=draw(st.sampled_from(["Cluster", "Local"])),
            ingress=draw(st.sampled_from([(), ({"ip": "80.0.0.9"},)])),
            loadBalancerSourceRanges=draw(st.lists(RANGES, max_size=2)),
            annotations=draw(SCHEDULERS),
            **draw(AFFINITY),  # type: ignore[arg-type]
        )
    )


@st.composite
def slices(draw: st.DrawFn) -> ModelObject:
    of = draw(NAMES)
    node_words = st.sampled_from(["here", "there", "-", "here draining", "there unready"])
    chosen = draw(st.lists(st.sampled_from(ADDRESSES), max_size=4, unique=True))
    return read_one(
        raw_slice(
            *(f"{address} {draw(node_words)}" for address in chosen),
            of=of,
            name=f"slice-{draw(st.integers(1, 3))}",
            annotations=draw(WEIGHT),
            ports=tuple(
                {"name": name, "port": 8080, "protocol": protocol}
                for name, protocol in (("http", "TCP"), ("renamed", "TCP"), ("dns", "UDP"))
            ),
        )
    )


REMOVALS = st.one_of(
    st.builds(ObjectKey, st.just("Service"), st.just("default"), NAMES),
    st.builds(
        ObjectKey,
        st.just("EndpointSlice"),
        st.just("default"),
        st.sampled_from(["slice-1", "slice-2", "slice-3"]),
    ),
)
Batch = list[ModelObject | ObjectKey]
BATCH = st.lists(st.one_of(services(), slices(), REMOVALS), min_size=1, max_size=4)
BATCHES = st.lists(BATCH, max_size=12)
AT_ONCE = st.integers(1, 3)
RANDOM = st.randoms(use_true_random=False)


def fold(batches: list[Batch]) -> list[ModelObject]:
    """Return the objects that exist at the end."""
    left: dict[ObjectKey, ModelObject] = {}
    for batch in batches:
        for one in batch:
            if isinstance(one, ObjectKey):
                left.pop(one, None)
        left |= {one.key: one for one in batch if not isinstance(one, ObjectKey)}
    return list(left.values())


def split(
    batch: Batch,
) -> tuple[list[ModelObject], list[ObjectKey]]:
    puts = [one for one in batch if not isinstance(one, ObjectKey)]
    return puts, [one for one in batch if isinstance(one, ObjectKey)]


def left_to_write(planner: Planner) -> list[Plan]:
    plans: list[Plan] = []
    planner.sync_all(0, plans.append)
    return plans


def follow(planner: Planner, batches: list[Batch], random: Random, kernel: Kernel) -> None:
    """Apply one batch after the other, each completely."""
    for batch in batches:
        kernel.sync(planner, planner.cache.apply(*split(batch)), random)


def program_new_kernel(objects: list[ModelObject], random: Random) -> Kernel:
    """Program a new kernel with these objects."""
    kernel, planner = Kernel(), new_planner()
    kernel.sync(planner, planner.cache.apply(objects, ()), random)
    return kernel


def cluster_ip_frontends(objects: list[ModelObject]) -> dict[Frontend, str]:
    """Return the frontends at cluster IPs, each with the name of its Service."""
    return {
        Frontend(address, port.number, port.protocol): one.name
        for one in objects
        if isinstance(one, Service)
        for address in one.cluster_ips
        for port in one.ports
    }


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(batches=BATCHES, at_once=AT_ONCE, random=RANDOM)
def test_many_steps_end_like_a_fresh_start(
    batches: list[Batch], at_once: int, random: Random
) -> None:
    kernel, planner = Kernel(), new_planner(at_once=at_once)
    follow(planner, batches, random, kernel)
    left = fold(batches)
    assert kernel.meaning() == program_new_kernel(left, random).meaning()
    for frontend, name in cluster_ip_frontends(left).items():
        assert kernel.names[kernel.frontends[frontend].service_id].port.name == name
    assert set(kernel.backends) == {
        (one.service_id, one.generation, slot)
        for one in planner.applied_state
        for slot in range(one.size)
    }
    assert set(kernel.positions) == {
        (one.service_id, one.generation, *place)
        for one in planner.applied_state
        for place in one.positions()
    }
    assert set(kernel.ranges) == {
        SourceRangeEntry(one.service_id, network)
        for one in planner.applied_state
        for network in one.ranges
    }
    assert set(kernel.tables) == {
        SCHEDULE_TABLES.key(entry)
        for one in planner.applied_state
        for entry in SCHEDULE_TABLES.entries(one)
    }
    assert set(kernel.rounds) == {
        entry.service_id for one in planner.applied_state for entry in SCHEDULE_ROUNDS.entries(one)
    }
    assert +kernel.endpoints == Counter(
        EndpointEntry(*place, one.port.protocol)
        for one in planner.applied_state
        for place in one.counters()
    )
    assert not left_to_write(planner), "nothing is left to write"


@settings(max_examples=200, deadline=None)
@given(batches=BATCHES, last=BATCH, stop_after=st.integers(0, 40), at_once=AT_ONCE, random=RANDOM)
def test_an_agent_that_dies_anywhere_is_replaced_without_harm(
    batches: list[Batch], last: Batch, stop_after: int, at_once: int, random: Random
) -> None:
    kernel, planner = Kernel(), new_planner()
    follow(planner, batches, random, kernel)
    touched = planner.cache.apply(*split(last))
    planner.sync(touched, 0, lambda plan: kernel.execute(plan, random, stop_after))

    successor = new_planner(at_once=at_once)
    restore_from(kernel, successor)
    left = fold([*batches, last])
    successor.cache.apply(left, ())
    kernel.sync(successor, None, random)

    assert kernel.meaning() == program_new_kernel(left, random).meaning()
    assert set(kernel.names) == {one.service_id for one in successor.applied_state}
    assert {entry.service_id for entry in kernel.ranges.values()} <= set(kernel.names)
    generations = {(one.service_id, one.generation) for one in successor.applied_state}
    for entries in (kernel.positions, kernel.tables):
        assert {key[:2] for key in entries} <= generations
    assert set(kernel.rounds) <= set(kernel.names)
    assert not left_to_write(successor), "nothing is left to write"


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(batches=BATCHES, at_once=AT_ONCE, random=RANDOM)
def test_a_full_map_harms_only_services_that_do_not_fit(
    batches: list[Batch], at_once: int, random: Random
) -> None:
    """Every write stays safe, and when there is room again the end is the same."""
    kernel, planner = Kernel(), new_planner(max_backends=5, at_once=at_once)
    follow(planner, batches, random, kernel)
    right = program_new_kernel(fold(batches), random).meaning()
    for frontend, meaning in kernel.meaning().items():
        port = meaning[0]
        if isinstance(port, ServicePort) and (port.namespace, port.name) not in planner.refused:
            assert right[frontend] == meaning

    larger = new_planner()
    restore_from(kernel, larger)
    larger.cache.apply(fold(batches), ())
    kernel.sync(larger, None, random)
    assert kernel.meaning() == right
