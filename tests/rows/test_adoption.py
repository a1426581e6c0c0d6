"""What an agent takes over from the one before it, and what it does not believe."""

from __future__ import annotations

import pytest

from bpfsvc.adoption import Adopted, adopt
from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.plan import BackendRow, FrontendRow, Position, PositionRow, RangeRow, ServiceName
from bpfsvc.rows import Network, Policies, Policy, ServicePort
from tests.rows import crowd
from tests.rows.objects import frontend

WEB = ServicePort("default", "web", "http", 6, 4)
API = WEB._replace(name="api")
WEB_ADDRESS, API_ADDRESS = frontend("10.96.0.1 80"), frontend("10.96.0.2 80")
ONE, TWO = frontend("10.0.0.1 80").address, frontend("10.0.0.2 80").address


def anyone(size: int) -> Policies:
    policy = Policy(0, size, False, size == 0)
    return Policies(policy, policy, policy)


def adopt_rows(
    names: list[ServiceName], frontends: list[FrontendRow], backends: list[BackendRow]
) -> tuple[Adopted, Ids]:
    ids = Ids(100)
    return adopt(names, frontends, backends, ids), ids


def test_complete_rows_are_adopted_and_ids_go_on_behind_them() -> None:
    adopted, ids = adopt_rows(
        [ServiceName(7, WEB, 80)],
        [FrontendRow(WEB_ADDRESS, 7, 12, anyone(2))],
        [BackendRow(7, 12, 0, ONE, 8080, 3), BackendRow(7, 12, 1, TWO, 8080, 1)],
    )
    (one,) = adopted.programmed
    assert (one.port, one.service_id, one.generation, one.number) == (WEB, 7, 12, 80)
    assert sorted(one.counters().values()) == [1, 3]
    assert not adopted.strays
    assert (ids.new_service(), ids.new_generation()) == (8, 13)
    assert [ids.take_counter() for _ in range(3)] == [2, 4, 5]


def test_a_generation_nobody_refers_to_is_a_stray() -> None:
    """The former agent died before it flipped, or before it cleaned up behind the flip."""
    adopted, ids = adopt_rows(
        [ServiceName(1, WEB, 80)],
        [FrontendRow(WEB_ADDRESS, 1, 5, anyone(1))],
        [BackendRow(1, generation, 0, ONE, 8080, 0) for generation in (4, 5, 6)],
    )
    assert [one.generation for one in adopted.programmed] == [5]
    assert sorted(adopted.strays.backends_deleted) == [(1, 4, 0), (1, 6, 0)]
    assert ids.new_generation() == 7, "generations are never used again, strays' neither"


def test_half_flipped_frontends_are_adopted_with_the_newer_generation() -> None:
    adopted, _ = adopt_rows(
        [ServiceName(1, WEB, 80)],
        [
            FrontendRow(WEB_ADDRESS, 1, 6, anyone(1)),
            FrontendRow(frontend("node4 30080"), 1, 5, anyone(1)),
        ],
        [BackendRow(1, generation, 0, ONE, 8080, 0) for generation in (5, 6)],
    )
    (one,) = adopted.programmed
    assert list(one.frontends()) == [WEB_ADDRESS]
    assert adopted.strays.frontends_deleted == [frontend("node4 30080")]


def test_a_service_with_a_missing_slot_is_not_adopted() -> None:
    adopted, _ = adopt_rows(
        [ServiceName(1, WEB, 80)],
        [FrontendRow(WEB_ADDRESS, 1, 5, anyone(2))],
        [BackendRow(1, 5, 0, ONE, 8080, 0)],
    )
    assert adopted.programmed == ()
    assert adopted.strays.frontends_deleted == [WEB_ADDRESS]
    assert adopted.strays.names_deleted == [1]


def test_counters_found_on_two_services_are_adopted_for_neither() -> None:
    adopted, _ = adopt_rows(
        [ServiceName(1, WEB, 80), ServiceName(2, API, 80)],
        [
            FrontendRow(WEB_ADDRESS, 1, 5, anyone(1)),
            FrontendRow(API_ADDRESS, 2, 6, anyone(1)),
        ],
        [BackendRow(1, 5, 0, ONE, 8080, 0), BackendRow(2, 6, 0, TWO, 8080, 0)],
    )
    assert adopted.programmed == ()
    assert sorted(adopted.strays.names_deleted) == [1, 2]


def test_two_ids_of_one_service_port_are_adopted_for_neither() -> None:
    adopted, _ = adopt_rows([ServiceName(1, WEB, 80), ServiceName(2, WEB, 80)], [], [])
    assert adopted.programmed == ()
    assert sorted(adopted.strays.names_deleted) == [1, 2]


def test_frontends_without_a_name_are_strays() -> None:
    adopted, ids = adopt_rows([], [FrontendRow(WEB_ADDRESS, 9, 5, anyone(0))], [])
    assert adopted.strays.frontends_deleted == [WEB_ADDRESS]
    assert ids.new_service() == 10


def test_an_empty_kernel_gives_nothing() -> None:
    adopted, ids = adopt_rows([], [], [])
    assert (adopted.programmed, bool(adopted.strays)) == ((), False)
    assert (ids.new_service(), ids.new_generation(), ids.take_counter()) == (1, 1, 1)


def test_counters_beyond_a_smaller_map_are_never_given_out() -> None:
    """``--max-backends`` was lowered; what is in the kernel serves on, but counts no more."""
    ids = Ids(2)
    adopted = adopt(
        [ServiceName(1, WEB, 80)],
        [FrontendRow(WEB_ADDRESS, 1, 5, anyone(2))],
        [BackendRow(1, 5, 0, ONE, 8080, 1), BackendRow(1, 5, 1, TWO, 8080, 9)],
        ids,
    )
    (one,) = adopted.programmed
    ids.free_counters(one.counters().values())
    assert [ids.take_counter(), ids.take_counter()] == [1, 2]
    with pytest.raises(MapFull):
        ids.take_counter()


STICKY = anyone(1)._replace(affinity_seconds=60)
NETWORKS = (Network(ONE, 100), Network(ONE, 104))


def adopt_special(
    policies: Policies, positions: list[PositionRow], ranges: list[RangeRow]
) -> Adopted:
    """One service port with an id of 1, a backend, and generation 5."""
    return adopt(
        [ServiceName(1, WEB, 80)],
        [FrontendRow(WEB_ADDRESS, 1, 5, policies)],
        [BackendRow(1, 5, 0, ONE, 8080, 1)],
        Ids(100),
        positions,
        ranges,
    )


def test_ranges_are_taken_over_with_their_service_and_others_are_strays() -> None:
    rows = [RangeRow(1, NETWORKS[1]), RangeRow(9, NETWORKS[0]), RangeRow(1, NETWORKS[0])]
    adopted = adopt_special(anyone(1)._replace(restricted=True), [], rows)
    assert adopted.programmed[0].ranges == NETWORKS
    assert adopted.strays.ranges_deleted == [RangeRow(9, NETWORKS[0])]


def test_affinity_is_taken_over_if_it_is_known_where_all_backends_stand() -> None:
    right = PositionRow(Position(1, 5, ONE, 8080), (0, 0))
    old = PositionRow(Position(1, 4, ONE, 8080), (0, 0))
    adopted = adopt_special(STICKY, [old, right], [])
    assert adopted.programmed[0].has_affinity
    assert adopted.strays.positions_deleted == [old.position]


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param([], id="no position"),
        pytest.param([PositionRow(Position(1, 5, TWO, 8080), (0, 0))], id="of another backend"),
        pytest.param([PositionRow(Position(1, 5, ONE, 8080), (0, 1))], id="beyond the slots"),
        pytest.param([PositionRow(Position(1, 4, ONE, 8080), (0, 0))], id="of another generation"),
    ],
)
def test_affinity_without_right_positions_is_not_taken_over(positions: list[PositionRow]) -> None:
    adopted = adopt_special(STICKY, positions, [])
    assert adopted.programmed == ()
    assert adopted.strays.positions_deleted == [row.position for row in positions]


def test_positions_that_nobody_needs_are_strays() -> None:
    one = PositionRow(Position(1, 5, ONE, 8080), (0, 0))
    adopted = adopt_special(anyone(1), [one], [])
    assert len(adopted.programmed) == 1
    assert adopted.strays.positions_deleted == [one.position]


def test_adoption_needs_little_room_beside_what_it_keeps() -> None:
    """The rows of ten thousand Services come at once, and holes in the heap stay for good."""
    adopted, kept, peak = crowd.weighed(
        lambda: adopt(crowd.names(), crowd.frontends(), crowd.backends(), Ids(2000))
    )
    assert len(adopted.programmed) == len(crowd.IDS)
    assert peak < 2.2 * kept
