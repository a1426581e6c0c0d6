"""Services whose scheduler compares the loads of backends: from objects to entries."""

from __future__ import annotations

from bpfsvc.base.address import pack
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.restore import restore
from bpfsvc.services.scheduling.extra import candidate_rows
from bpfsvc.services.scheduling.maps import LocalityEntry
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.services.cluster import LOCAL, NODE_PORT, ONE, THREE, TWO, VIP, Cluster, scheduled
from tests.services.objects import endpoint_slice


def test_backends_are_compared_by_their_weights() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("wlc", "10.0.0.1=2,10.0.0.2=0"), endpoint_slice(ONE, TWO, THREE))
    assert cluster.policies.schedule == Schedule.WLC
    ids = {one.address: one.counters_id for one in cluster.kernel.backends.values()}
    (entry,) = cluster.kernel.candidates.values()
    rows = list(candidate_rows(entry.rows))
    assert rows == [(ids[pack("10.0.0.1")], 2), (ids[pack("10.0.0.3")], 1)]


def test_ovf_has_the_highest_weight_first_and_refuses() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("ovf", "10.0.0.2=9"), endpoint_slice(ONE, TWO, THREE))
    slots = [one.address for _, one in sorted(cluster.kernel.backends.items())]
    assert slots == [pack("10.0.0.2"), pack("10.0.0.1"), pack("10.0.0.3")]
    assert cluster.policies.pod.reject


def test_each_address_of_a_service_keeps_backends_of_its_own() -> None:
    """With policy Local other clients have others than pods."""
    cluster = Cluster()
    cluster.apply(scheduled("lblc", "", **LOCAL), endpoint_slice(ONE, TWO))
    kept = {(entry.address, entry.local) for entry in cluster.kernel.localities.values()}
    assert kept == {
        *((VIP.address, False), (NODE_PORT.address, False)),
        (NODE_PORT.address, True),
    }
    before = dict(cluster.kernel.localities)
    cluster.apply(scheduled("lblc", "", **LOCAL), endpoint_slice(ONE, TWO, THREE))
    cluster.restart()
    assert cluster.kernel.localities == before
    cluster.apply(scheduled("lblcr", "", **LOCAL), endpoint_slice(ONE, TWO, THREE))
    schedules = {entry.schedule for entry in cluster.kernel.localities.values()}
    assert schedules == {Schedule.LBLCR}
    cluster.apply(scheduled("wlc", "", **LOCAL), endpoint_slice(ONE, TWO, THREE))
    assert not cluster.kernel.localities


def test_an_address_keeps_backends_of_each_service_port() -> None:
    """The first one alone has the guard of the address, which keeps none."""
    cluster = Cluster()
    ports = [{"name": "http", "port": 80}, {"name": "admin", "port": 81}]
    slices = endpoint_slice(ONE, TWO, ports=tuple(port | {"port": 8080} for port in ports))
    cluster.apply(scheduled("lblc", ports=ports), slices)
    kept = {(entry.service_id, entry.address) for entry in cluster.kernel.localities.values()}
    assert kept == {(service_id, VIP.address) for service_id in cluster.kernel.names}
    assert len(kept) == 2


def test_without_endpoints_of_this_node_its_clients_keep_none() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("lblc", "", **LOCAL), endpoint_slice(TWO, THREE))
    kept = {(entry.address, entry.local) for entry in cluster.kernel.localities.values()}
    assert kept == {(VIP.address, False), (NODE_PORT.address, False)}


def test_an_address_of_a_service_without_endpoints_keeps_none() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("lblc"), endpoint_slice())
    assert VIP in cluster.kernel.frontends
    assert not cluster.kernel.localities


def test_a_service_port_whose_candidates_are_lost_is_written_anew() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("lc"), endpoint_slice(ONE, TWO))
    assert len(restore(cluster.kernel.read, Ids(100)).applied) == 1
    cluster.kernel.candidates.clear()
    assert not restore(cluster.kernel.read, Ids(100)).applied


def test_what_a_killed_agent_has_written_for_an_address_is_kept_if_it_is_needed() -> None:
    """It got as far as that with another scheduler; its successor carries the change out."""
    cluster = Cluster()
    cluster.apply(scheduled("wlc"), endpoint_slice(ONE, TWO))
    entry = LocalityEntry(
        cluster.kernel.frontends[VIP].service_id, VIP.address, False, Schedule.LBLC
    )
    cluster.kernel.localities[entry] = entry
    cluster.planner.cache.apply([scheduled("lblc")], ())
    cluster.restart()
    assert cluster.policies.schedule == Schedule.LBLC
    assert list(cluster.kernel.localities) == [entry]


def test_a_new_endpoint_does_not_get_the_numbers_of_one_that_is_gone() -> None:
    """Those of its connections that are left would count for it, and what an address kept."""
    cluster = Cluster()
    cluster.apply(scheduled("lblc"), endpoint_slice(ONE, TWO))
    before = {one.counters_id for one in cluster.kernel.backends.values()}
    cluster.apply(endpoint_slice(ONE))
    cluster.apply(endpoint_slice(ONE, THREE))
    ids = {one.address: one.counters_id for one in cluster.kernel.backends.values()}
    assert ids[pack("10.0.0.1")] in before
    assert ids[pack("10.0.0.3")] not in before


def test_with_more_backends_than_are_compared_no_address_keeps_any() -> None:
    cluster = Cluster()
    many = [f"10.0.{number}.1 there" for number in range(65)]
    cluster.apply(scheduled("lblcr"), endpoint_slice(*many[:64]))
    assert len(cluster.kernel.localities) == 1
    cluster.apply(scheduled("lblcr"), endpoint_slice(*many))
    assert not cluster.kernel.localities


def test_a_restart_finds_the_weights_that_are_compared() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("sed", "10.0.0.1=3"), endpoint_slice(ONE, TWO))
    before = dict(cluster.kernel.candidates), cluster.generation
    cluster.restart()
    assert (dict(cluster.kernel.candidates), cluster.generation) == before
