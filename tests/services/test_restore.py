"""The state that an agent restores from the kernel, and the entries that it does not trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bpfsvc.base.errors import MapFull
from bpfsvc.base.networks import Network
from bpfsvc.services.entries import Policies, Policy, ServicePort
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.registry import (
    BACKENDS,
    FRONTENDS,
    POSITIONS,
    SERVICES,
    SOURCE_RANGES,
    BackendEntry,
    FrontendEntry,
    PositionEntry,
    ServiceName,
    SourceRangeEntry,
)
from bpfsvc.services.plans.restore import Restored, restore
from bpfsvc.services.scheduling.extra import PlaceRun
from bpfsvc.services.scheduling.maps import SCHEDULE_TABLES, ScheduleTableEntry
from bpfsvc.services.service_map import E, Read, ServiceMap
from tests.services import crowd
from tests.services.objects import frontend

WEB = ServicePort("default", "web", "http", 6, 4)
API = WEB._replace(name="api")
WEB_ADDRESS, API_ADDRESS = frontend("10.96.0.1 80"), frontend("10.96.0.2 80")
ONE, TWO = frontend("10.0.0.1 80").address, frontend("10.0.0.2 80").address


def same_for_all(size: int) -> Policies:
    policy = Policy(0, size, False, size == 0)
    return Policies(policy, policy, policy)


def reader(*entries: Sequence[tuple[Any, ...]]) -> Read:
    """Return a function that reads these entries."""

    def read(one: ServiceMap[E], /) -> list[E]:
        return [entry for each in entries for entry in each if isinstance(entry, one.entry)]

    return read


def restore_entries(
    names: list[ServiceName], frontends: list[FrontendEntry], backends: list[BackendEntry]
) -> tuple[Restored, Ids]:
    ids = Ids(100)
    return restore(reader(names, frontends, backends), ids), ids


def test_complete_entries_are_restored_and_new_ids_follow_theirs() -> None:
    restored, ids = restore_entries(
        [ServiceName(7, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 7, 12, same_for_all(2))],
        [BackendEntry(7, 12, 0, ONE, 8080, 3), BackendEntry(7, 12, 1, TWO, 8080, 1)],
    )
    (one,) = restored.applied
    assert (one.port, one.service_id, one.generation, one.number) == (WEB, 7, 12, 80)
    assert sorted(one.counters().values()) == [1, 3]
    assert not restored.strays
    assert (ids.new_service(), ids.new_generation()) == (8, 13)
    assert [ids.take_counter() for _ in range(3)] == [4, 5, 6]


def test_a_service_port_without_frontends_and_endpoints_keeps_its_number() -> None:
    restored, ids = restore_entries([ServiceName(7, WEB, 80)], [], [])
    assert [(state.port, state.service_id) for state in restored.applied] == [(WEB, 7)]
    assert not restored.strays
    assert ids.new_service() == 8


def test_a_generation_without_a_frontend_is_a_stray() -> None:
    """The previous agent died before it changed the frontends, or before it cleaned up."""
    restored, ids = restore_entries(
        [ServiceName(1, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(1))],
        [BackendEntry(1, generation, 0, ONE, 8080, 0) for generation in (4, 5, 6)],
    )
    assert [one.generation for one in restored.applied] == [5]
    assert sorted(restored.strays.deletes(BACKENDS)) == [(1, 4, 0), (1, 6, 0)]
    assert ids.new_generation() == 7, "generations are never reused, not even those of strays"


def test_partly_changed_frontends_are_restored_with_the_newer_generation() -> None:
    restored, _ = restore_entries(
        [ServiceName(1, WEB, 80)],
        [
            FrontendEntry(WEB_ADDRESS, 1, 6, same_for_all(1)),
            FrontendEntry(frontend("node4 30080"), 1, 5, same_for_all(1)),
        ],
        [BackendEntry(1, generation, 0, ONE, 8080, 0) for generation in (5, 6)],
    )
    (one,) = restored.applied
    assert list(one.frontends()) == [WEB_ADDRESS]
    assert restored.strays.deletes(FRONTENDS) == [frontend("node4 30080")]


def test_a_service_with_a_missing_slot_is_not_restored() -> None:
    restored, _ = restore_entries(
        [ServiceName(1, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(2))],
        [BackendEntry(1, 5, 0, ONE, 8080, 0)],
    )
    assert restored.applied == ()
    assert restored.strays.deletes(FRONTENDS) == [WEB_ADDRESS]
    assert restored.strays.deletes(SERVICES) == [1]


def test_two_services_with_the_same_counters_are_not_restored() -> None:
    restored, _ = restore_entries(
        [ServiceName(1, WEB, 80), ServiceName(2, API, 80)],
        [
            FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(1)),
            FrontendEntry(API_ADDRESS, 2, 6, same_for_all(1)),
        ],
        [BackendEntry(1, 5, 0, ONE, 8080, 0), BackendEntry(2, 6, 0, TWO, 8080, 0)],
    )
    assert restored.applied == ()
    assert sorted(restored.strays.deletes(SERVICES)) == [1, 2]


def test_the_last_counters_are_shared_like_any_other() -> None:
    entries = (
        [ServiceName(1, WEB, 80), ServiceName(2, API, 80)],
        [
            FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(1)),
            FrontendEntry(API_ADDRESS, 2, 6, same_for_all(1)),
        ],
        [BackendEntry(1, 5, 0, ONE, 8080, 2), BackendEntry(2, 6, 0, TWO, 8080, 2)],
    )
    assert restore(reader(*entries), Ids(2)).applied == ()


def test_the_first_counters_are_given_out_again_if_no_restored_backend_has_them() -> None:
    ids = Ids(2)
    entries = (
        [ServiceName(1, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(1))],
        [BackendEntry(1, 5, 0, ONE, 8080, 2)],
    )
    restore(reader(*entries), ids)
    assert ids.take_counter() == 1
    with pytest.raises(MapFull):
        ids.take_counter()


def test_no_counters_at_all_are_not_given_back() -> None:
    ids = Ids(2)
    ids.free_counters([0, 3])
    assert [ids.take_counter(), ids.take_counter()] == [1, 2]
    with pytest.raises(MapFull):
        ids.take_counter()


def test_two_ids_of_one_service_port_are_not_restored() -> None:
    restored, _ = restore_entries([ServiceName(1, WEB, 80), ServiceName(2, WEB, 80)], [], [])
    assert restored.applied == ()
    assert sorted(restored.strays.deletes(SERVICES)) == [1, 2]


def test_frontends_without_a_name_are_strays() -> None:
    restored, ids = restore_entries([], [FrontendEntry(WEB_ADDRESS, 9, 5, same_for_all(0))], [])
    assert restored.strays.deletes(FRONTENDS) == [WEB_ADDRESS]
    assert ids.new_service() == 10


def test_nothing_is_restored_from_an_empty_kernel() -> None:
    restored, ids = restore_entries([], [], [])
    assert (restored.applied, bool(restored.strays)) == ((), False)
    assert (ids.new_service(), ids.new_generation(), ids.take_counter()) == (1, 1, 1)


def test_counter_ids_beyond_a_smaller_map_are_never_assigned() -> None:
    """``--max-backends`` was lowered; existing backends still serve, but no longer count."""
    ids = Ids(2)
    entries = (
        [ServiceName(1, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 1, 5, same_for_all(2))],
        [BackendEntry(1, 5, 0, ONE, 8080, 1), BackendEntry(1, 5, 1, TWO, 8080, 9)],
    )
    restored = restore(reader(*entries), ids)
    (one,) = restored.applied
    ids.free_counters(one.counters().values())
    assert [ids.take_counter(), ids.take_counter()] == [2, 1]
    with pytest.raises(MapFull):
        ids.take_counter()


WITH_AFFINITY = same_for_all(1)._replace(affinity_seconds=60)
NETWORKS = (Network(ONE, 100), Network(ONE, 104))


def restore_special(
    policies: Policies, positions: list[PositionEntry], ranges: list[SourceRangeEntry]
) -> Restored:
    """Restore one service port with id 1, one backend, and generation 5."""
    entries = (
        [ServiceName(1, WEB, 80)],
        [FrontendEntry(WEB_ADDRESS, 1, 5, policies)],
        [BackendEntry(1, 5, 0, ONE, 8080, 1)],
    )
    return restore(reader(*entries, positions, ranges), Ids(100))


def test_ranges_are_restored_with_their_service_and_others_are_strays() -> None:
    entries = [
        SourceRangeEntry(1, NETWORKS[1]),
        SourceRangeEntry(9, NETWORKS[0]),
        SourceRangeEntry(1, NETWORKS[0]),
    ]
    restored = restore_special(same_for_all(1)._replace(restricted=True), [], entries)
    assert restored.applied[0].ranges == NETWORKS
    assert restored.strays.deletes(SOURCE_RANGES) == [SourceRangeEntry(9, NETWORKS[0])]


def test_a_table_of_a_service_port_without_frontends_and_backends_is_a_stray() -> None:
    table = ScheduleTableEntry(1, 1, 0, 0, PlaceRun(bytes(256)))
    restored = restore(reader([ServiceName(1, WEB, 80)], [table]), Ids(100))
    assert restored.strays.deletes(SCHEDULE_TABLES) == [table[:4]]


def test_affinity_is_restored_if_all_backends_have_positions() -> None:
    right = PositionEntry(1, 5, ONE, 8080, (0, 0))
    old = PositionEntry(1, 4, ONE, 8080, (0, 0))
    restored = restore_special(WITH_AFFINITY, [old, right], [])
    assert restored.applied[0].has_affinity
    assert restored.strays.deletes(POSITIONS) == [old[:4]]


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param([], id="no position"),
        pytest.param([PositionEntry(1, 5, TWO, 8080, (0, 0))], id="of another backend"),
        pytest.param([PositionEntry(1, 5, ONE, 8080, (0, 1))], id="beyond the slots"),
        pytest.param([PositionEntry(1, 4, ONE, 8080, (0, 0))], id="of another generation"),
    ],
)
def test_affinity_with_wrong_positions_is_not_restored(positions: list[PositionEntry]) -> None:
    restored = restore_special(WITH_AFFINITY, positions, [])
    assert restored.applied == ()
    assert restored.strays.deletes(POSITIONS) == [entry[:4] for entry in positions]


def test_positions_without_affinity_are_strays() -> None:
    one = PositionEntry(1, 5, ONE, 8080, (0, 0))
    restored = restore_special(same_for_all(1), [one], [])
    assert len(restored.applied) == 1
    assert restored.strays.deletes(POSITIONS) == [one[:4]]


def test_restoring_needs_little_memory_beyond_its_result() -> None:
    """Entries of ten thousand Services come at once, and gaps in the heap are never returned."""
    restored, kept, peak = crowd.measured(lambda: restore(crowd.read, Ids(2000)))
    assert len(restored.applied) == len(crowd.IDS)
    assert peak < 2.2 * kept
