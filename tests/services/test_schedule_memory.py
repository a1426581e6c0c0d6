"""The memory of schedules' tables, which are the largest of what Services have."""

from __future__ import annotations

import gc
import sys

from bpfsvc.services.entries import Extra
from bpfsvc.services.scheduling.extra import PLACE_BYTES
from bpfsvc.services.scheduling.maglev import MAGLEV_PLACES, maglev_table
from tests.services.cluster import ONE, TWO, Cluster, scheduled
from tests.services.objects import endpoint_slice

_MANY = 20


def blocks_after_new_endpoints(cluster: Cluster, network: int) -> int:
    """Replace the endpoints of the Service many times. Return how many blocks Python holds then."""
    for number in range(_MANY):
        address = f"10.{network}.{number}"
        cluster.apply(endpoint_slice(f"{address}.1 here", f"{address}.2 there"))
    gc.collect()
    return sys.getallocatedblocks()


def test_a_service_keeps_no_tables_of_endpoints_that_are_gone() -> None:
    cluster = Cluster()
    cluster.apply(scheduled("mh"))
    before = blocks_after_new_endpoints(cluster, 1)
    after = blocks_after_new_endpoints(cluster, 2)
    entries = len(extra_of(cluster)["schedule_tables"])
    assert entries == 32
    assert after - before < 20 * entries


def test_the_last_maglev_tables_that_were_made_take_2_mb_at_most() -> None:
    tables = maglev_table.cache_info().maxsize
    assert tables
    assert tables * max(MAGLEV_PLACES) * PLACE_BYTES < 2_200_000


def test_equal_services_share_a_table() -> None:
    """Ten thousand Services that have the same weights take one table."""
    first, second = Cluster(), Cluster()
    first.apply(scheduled("wrr", "10.0.0.1=3"), endpoint_slice(ONE, TWO))
    second.apply(scheduled("wrr", "10.0.0.8=3"), endpoint_slice("10.0.0.8 here", "10.0.0.9 there"))
    assert extra_of(first)["schedule_tables"]
    assert extra_of(first) is extra_of(second)


def extra_of(cluster: Cluster) -> Extra:
    """Return the entries of schedules of the only service port of a cluster."""
    (applied,) = cluster.planner.applied_state
    return applied.extra
