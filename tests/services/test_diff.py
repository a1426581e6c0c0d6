"""Which entries are written when a Service changes, and which are not."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import MapFull
from bpfsvc.base.networks import Network
from bpfsvc.services.entries import (
    Backend,
    Policies,
    Policy,
    PortEntries,
    ServiceEntries,
    ServicePort,
    range_entries,
)
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.diff import plan
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import BACKENDS, ENDPOINTS, FRONTENDS, POSITIONS
from tests.services.objects import frontend

WEB = ServicePort("default", "web", "http", 6, 4)
RENAMED = WEB._replace(port_name="renamed")
ADDRESS, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
ONE, TWO, THREE = (Backend(frontend(f"10.0.0.{number} 1").address, 8080) for number in (1, 2, 3))


def policies(size: int, seconds: int = 0, restricted: bool = False) -> Policies:
    anyone = Policy(0, size, False, size == 0)
    return Policies(anyone, anyone, anyone, seconds, restricted)


def port_entries(
    *backends: Backend,
    node_port: bool = False,
    number: int = 80,
    seconds: int = 0,
    ranges: tuple[Network, ...] = (),
) -> PortEntries:
    anyone = policies(len(backends), seconds, bool(ranges))
    frontends = {ADDRESS: anyone}
    if node_port:
        frontends[NODE_PORT] = anyone
    return PortEntries(number, backends, frontends, range_entries(ranges))


NEAR, FAR = Network(bytes(16), 100), Network(bytes(16), 104)


class Agent:
    """Ids and applied state of an agent whose plans are always written."""

    def __init__(self, max_backends: int = 100) -> None:
        self.ids = Ids(max_backends)
        self.applied_state = AppliedState()

    def plan(self, wanted: ServiceEntries) -> Plan:
        steps = plan(self.applied_state.of(("default", "web")), wanted, self.ids)
        self.applied_state.update(steps.applied)
        self.ids.free_counters(steps.counters_freed)
        return steps


def sizes(steps: Plan) -> dict[str, int]:
    """Count the operations of each phase that has any."""
    puts = {f"{one.name}_put": len(entries) for one, entries in steps.put_phases()}
    return puts | {f"{one.name}_deleted": len(keys) for one, keys in steps.delete_phases()}


CHANGES = [
    (
        "a first backend",
        {WEB: port_entries()}, {WEB: port_entries(ONE)},
        {"endpoints_put": 1, "backends_put": 1, "frontends_put": 1},
    ),
    (
        "one more backend: a new generation beside the old, then the frontend changes",
        {WEB: port_entries(ONE)}, {WEB: port_entries(ONE, TWO)},
        {"endpoints_put": 1, "backends_put": 2, "frontends_put": 1, "backends_deleted": 1},
    ),
    (
        "the last backend goes",
        {WEB: port_entries(ONE)}, {WEB: port_entries()},
        {"frontends_put": 1, "backends_deleted": 1, "endpoints_deleted": 1},
    ),
    ("nothing changes", {WEB: port_entries(ONE)}, {WEB: port_entries(ONE)}, {}),
    (
        "one more frontend: the backends are not written",
        {WEB: port_entries(ONE)}, {WEB: port_entries(ONE, node_port=True)}, {"frontends_put": 1},
    ),
    (
        "one frontend less", {WEB: port_entries(ONE, node_port=True)}, {WEB: port_entries(ONE)},
        {"frontends_deleted": 1},
    ),
    (
        "another service port number",
        {WEB: port_entries(ONE)}, {WEB: port_entries(ONE, number=81)}, {"services_put": 1},
    ),
    (
        "another port name: the frontend is rewritten, never deleted",
        {WEB: port_entries(ONE)}, {RENAMED: port_entries(ONE)},
        {"services_put": 1, "endpoints_put": 1, "backends_put": 1, "frontends_put": 1}
        | {"backends_deleted": 1, "endpoints_deleted": 1, "services_deleted": 1}
        | {"refusals_deleted": 1},
    ),
    (
        "affinity begins: a new generation with positions",
        {WEB: port_entries(ONE, TWO)}, {WEB: port_entries(ONE, TWO, seconds=60)},
        {"backends_put": 2, "positions_put": 2, "frontends_put": 1, "backends_deleted": 2},
    ),
    (
        "affinity ends: a new generation without positions",
        {WEB: port_entries(ONE, TWO, seconds=60)}, {WEB: port_entries(ONE, TWO)},
        {"backends_put": 2, "frontends_put": 1, "positions_deleted": 2, "backends_deleted": 2},
    ),
    (
        "affinity lasts longer: backends and positions are not written",
        {WEB: port_entries(ONE, seconds=60)}, {WEB: port_entries(ONE, seconds=61)},
        {"frontends_put": 1},
    ),
    (
        "one backend less with affinity: positions are deleted with their generation",
        {WEB: port_entries(ONE, TWO, seconds=60)}, {WEB: port_entries(TWO, seconds=60)},
        {"backends_put": 1, "positions_put": 1, "frontends_put": 1}
        | {"positions_deleted": 2, "backends_deleted": 2, "endpoints_deleted": 1},
    ),
    (
        "a Service becomes restricted: its ranges, then its frontends",
        {WEB: port_entries(ONE)}, {WEB: port_entries(ONE, ranges=(NEAR,))},
        {"source_ranges_put": 1, "frontends_put": 1},
    ),
    (
        "another range: the new one is written, the old one deleted, frontends stay",
        {WEB: port_entries(ONE, ranges=(NEAR,))}, {WEB: port_entries(ONE, ranges=(FAR,))},
        {"source_ranges_put": 1, "source_ranges_deleted": 1},
    ),
    (
        "a Service is restricted no more: its frontends, then its ranges",
        {WEB: port_entries(ONE, ranges=(NEAR, FAR))}, {WEB: port_entries(ONE)},
        {"frontends_put": 1, "source_ranges_deleted": 2},
    ),
    (
        "a restricted Service with affinity goes",
        {WEB: port_entries(ONE, seconds=60, ranges=(NEAR,))}, {},
        {"frontends_deleted": 1, "source_ranges_deleted": 1, "positions_deleted": 1}
        | {"backends_deleted": 1, "endpoints_deleted": 1, "services_deleted": 1}
        | {"refusals_deleted": 1},
    ),
    (
        "a backend becomes known as one of this node: it keeps its counters",
        {WEB: port_entries(ONE)}, {WEB: port_entries(ONE._replace(hairpin=True))},
        {"backends_put": 1, "frontends_put": 1, "backends_deleted": 1},
    ),
    (
        "the Service goes",
        {WEB: port_entries(ONE, TWO)}, {},
        {"frontends_deleted": 1, "backends_deleted": 2}
        | {"endpoints_deleted": 2, "services_deleted": 1, "refusals_deleted": 1},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [pytest.param(*case, id=sentence) for sentence, *case in CHANGES],
)
def test_a_change_needs_exactly_these_operations(
    before: ServiceEntries, after: ServiceEntries, expected: dict[str, int]
) -> None:
    """A change needs exactly these operations."""
    agent = Agent()
    agent.plan(before)
    assert sizes(agent.plan(after)) == expected


def test_an_endpoint_that_stays_keeps_its_counters() -> None:
    agent = Agent()
    first = agent.plan({WEB: port_entries(ONE, TWO)})
    second = agent.plan({WEB: port_entries(TWO, THREE)})
    counters = {
        entry.address: entry.counters_id
        for entry in (*first.puts(BACKENDS), *second.puts(BACKENDS))
    }
    assert [entry.counters_id for entry in first.puts(BACKENDS)] == [1, 2]
    assert counters[TWO.address] == 2
    assert (second.counters_taken, second.counters_freed) == ([3], [1])


def test_an_endpoint_in_both_sets_has_one_id() -> None:
    steps = Agent().plan({WEB: port_entries(ONE, TWO, ONE)})
    assert [entry.counters_id for entry in steps.puts(BACKENDS)] == [1, 2, 1]
    assert len(steps.puts(ENDPOINTS)) == 2


def test_a_position_names_the_first_and_the_last_slot_of_a_backend() -> None:
    steps = Agent().plan({WEB: port_entries(ONE, TWO, ONE, seconds=60)})
    slots = {entry.address: entry.slots for entry in steps.puts(POSITIONS)}
    assert slots == {ONE.address: (0, 2), TWO.address: (1, 1)}


def test_the_applied_state_is_what_was_written() -> None:
    agent = Agent()
    steps = agent.plan({WEB: port_entries(ONE, TWO)})
    (one,) = agent.applied_state
    assert list(BACKENDS.entries(one)) == steps.puts(BACKENDS)
    assert one.frontends() == {entry.frontend: entry.policies for entry in steps.puts(FRONTENDS)}


def test_counter_ids_are_reused_longest_unused_first() -> None:
    agent = Agent(max_backends=3)
    agent.plan({WEB: port_entries(ONE, TWO)})
    agent.plan({WEB: port_entries()})
    assert agent.plan({WEB: port_entries(THREE)}).counters_taken == [3]
    assert agent.plan({WEB: port_entries(ONE)}).counters_taken == [1]


def test_counter_ids_rest_before_they_are_reused_and_yet_stay_dense() -> None:
    ids = Ids(65536)
    taken = []
    for _ in range(10_000):
        taken.append(ids.take_counter())
        ids.free_counters(taken[-1:])
    assert len(set(taken[:4000])) == len(set(taken[4000:8000])) == 4000
    assert max(taken) < 4100


def test_generations_and_service_ids_are_never_reused() -> None:
    agent = Agent()
    seen = []
    for backends in ((ONE,), (TWO,), (ONE,)):
        (entry,) = agent.plan({WEB: port_entries(*backends)}).puts(FRONTENDS)
        seen.append((entry.service_id, entry.generation))
    agent.plan({})
    (entry,) = agent.plan({WEB: port_entries(ONE)}).puts(FRONTENDS)
    assert [*seen, (entry.service_id, entry.generation)] == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_the_error_of_a_full_map_names_its_flag_and_no_id_is_lost() -> None:
    agent = Agent(max_backends=2)
    with pytest.raises(MapFull, match=r"backend_counters.*--max-backends"):
        agent.plan({WEB: port_entries(ONE, TWO, THREE)})
    assert len(agent.plan({WEB: port_entries(ONE, TWO)}).counters_taken) == 2


def test_each_update_of_the_applied_state_is_told_by_another_version() -> None:
    """Figures that are computed from the state are computed once for each version."""
    state = AppliedState()
    versions = [state.version]
    for _ in range(2):
        state.update({})
        versions.append(state.version)
    assert len(set(versions)) == 3
