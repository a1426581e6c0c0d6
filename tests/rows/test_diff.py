"""What is written when rows change, and what is left alone."""

from __future__ import annotations

import pytest

from bpfsvc.diff import plan
from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.plan import PHASES, Plan
from bpfsvc.programmed import Ledger
from bpfsvc.rows import Backend, Network, Policies, Policy, PortRows, ServicePort, ServiceRows
from tests.rows.objects import frontend

WEB = ServicePort("default", "web", "http", 6, 4)
RENAMED = WEB._replace(port_name="renamed")
ADDRESS, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
ONE, TWO, THREE = (Backend(frontend(f"10.0.0.{number} 1").address, 8080) for number in (1, 2, 3))


def policies(size: int, seconds: int = 0, restricted: bool = False) -> Policies:
    anyone = Policy(0, size, False, size == 0)
    return Policies(anyone, anyone, anyone, seconds, restricted)


def port_rows(
    *backends: Backend,
    node_port: bool = False,
    number: int = 80,
    seconds: int = 0,
    ranges: tuple[Network, ...] = (),
) -> PortRows:
    anyone = policies(len(backends), seconds, bool(ranges))
    frontends = {ADDRESS: anyone}
    if node_port:
        frontends[NODE_PORT] = anyone
    return PortRows(number, backends, frontends, ranges)


NEAR, FAR = Network(bytes(16), 100), Network(bytes(16), 104)


class Agent:
    """Ids and ledger of an agent whose plans are always written."""

    def __init__(self, max_backends: int = 100) -> None:
        self.ids = Ids(max_backends)
        self.ledger = Ledger()

    def plan(self, wanted: ServiceRows) -> Plan:
        steps = plan(self.ledger.of(("default", "web")), wanted, self.ids)
        self.ledger.settle(steps.programmed)
        self.ids.free_counters(steps.counters_freed)
        return steps


def sizes(steps: Plan) -> dict[str, int]:
    """Count the operations of each phase that has any."""
    return {phase: len(getattr(steps, phase)) for phase in PHASES if getattr(steps, phase)}


CHANGES = [
    (
        "a first backend",
        {WEB: port_rows()}, {WEB: port_rows(ONE)},
        {"endpoints_put": 1, "backends_put": 1, "frontends_put": 1},
    ),
    (
        "one more backend: all anew beside the old, and a flip",
        {WEB: port_rows(ONE)}, {WEB: port_rows(ONE, TWO)},
        {"endpoints_put": 1, "backends_put": 2, "frontends_put": 1, "backends_deleted": 1},
    ),
    (
        "the last backend goes",
        {WEB: port_rows(ONE)}, {WEB: port_rows()},
        {"frontends_put": 1, "backends_deleted": 1, "endpoints_left": 1},
    ),
    ("nothing changes", {WEB: port_rows(ONE)}, {WEB: port_rows(ONE)}, {}),
    (
        "one more frontend: the backends are left alone",
        {WEB: port_rows(ONE)}, {WEB: port_rows(ONE, node_port=True)}, {"frontends_put": 1},
    ),
    (
        "one frontend less",
        {WEB: port_rows(ONE, node_port=True)}, {WEB: port_rows(ONE)}, {"frontends_deleted": 1},
    ),
    (
        "another number for people",
        {WEB: port_rows(ONE)}, {WEB: port_rows(ONE, number=81)}, {"names_put": 1},
    ),
    (
        "another port name: the frontend is rewritten, never deleted",
        {WEB: port_rows(ONE)}, {RENAMED: port_rows(ONE)},
        {"names_put": 1, "endpoints_put": 1, "backends_put": 1, "frontends_put": 1}
        | {"backends_deleted": 1, "endpoints_left": 1, "names_deleted": 1},
    ),
    (
        "affinity begins: all anew, so that it is known where backends stand",
        {WEB: port_rows(ONE, TWO)}, {WEB: port_rows(ONE, TWO, seconds=60)},
        {"backends_put": 2, "positions_put": 2, "frontends_put": 1, "backends_deleted": 2},
    ),
    (
        "affinity ends: all anew, without positions",
        {WEB: port_rows(ONE, TWO, seconds=60)}, {WEB: port_rows(ONE, TWO)},
        {"backends_put": 2, "frontends_put": 1, "positions_deleted": 2, "backends_deleted": 2},
    ),
    (
        "affinity lasts longer: the backends and where they stand are left alone",
        {WEB: port_rows(ONE, seconds=60)}, {WEB: port_rows(ONE, seconds=61)},
        {"frontends_put": 1},
    ),
    (
        "a backend less with affinity: positions go with their generation",
        {WEB: port_rows(ONE, TWO, seconds=60)}, {WEB: port_rows(TWO, seconds=60)},
        {"backends_put": 1, "positions_put": 1, "frontends_put": 1}
        | {"positions_deleted": 2, "backends_deleted": 2, "endpoints_left": 1},
    ),
    (
        "a Service becomes restricted: its ranges, then its frontends",
        {WEB: port_rows(ONE)}, {WEB: port_rows(ONE, ranges=(NEAR,))},
        {"ranges_put": 1, "frontends_put": 1},
    ),
    (
        "another range: the new comes, the old goes, frontends stay",
        {WEB: port_rows(ONE, ranges=(NEAR,))}, {WEB: port_rows(ONE, ranges=(FAR,))},
        {"ranges_put": 1, "ranges_deleted": 1},
    ),
    (
        "a Service is restricted no more: its frontends, then its ranges",
        {WEB: port_rows(ONE, ranges=(NEAR, FAR))}, {WEB: port_rows(ONE)},
        {"frontends_put": 1, "ranges_deleted": 2},
    ),
    (
        "a restricted Service with affinity goes",
        {WEB: port_rows(ONE, seconds=60, ranges=(NEAR,))}, {},
        {"frontends_deleted": 1, "ranges_deleted": 1, "positions_deleted": 1}
        | {"backends_deleted": 1, "endpoints_left": 1, "names_deleted": 1},
    ),
    (
        "a backend turns out to be of this node: it keeps its counters",
        {WEB: port_rows(ONE)}, {WEB: port_rows(ONE._replace(hairpin=True))},
        {"backends_put": 1, "frontends_put": 1, "backends_deleted": 1},
    ),
    (
        "the Service goes",
        {WEB: port_rows(ONE, TWO)}, {},
        {"frontends_deleted": 1, "backends_deleted": 2, "endpoints_left": 2, "names_deleted": 1},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [pytest.param(*case, id=sentence) for sentence, *case in CHANGES],
)
def test_what_is_written(before: ServiceRows, after: ServiceRows, expected: dict[str, int]) -> None:
    """A change costs exactly these operations."""
    agent = Agent()
    agent.plan(before)
    assert sizes(agent.plan(after)) == expected


def test_an_endpoint_that_stays_keeps_its_counters() -> None:
    agent = Agent()
    first = agent.plan({WEB: port_rows(ONE, TWO)})
    second = agent.plan({WEB: port_rows(TWO, THREE)})
    counters = {row.address: row.counter for row in (*first.backends_put, *second.backends_put)}
    assert [row.counter for row in first.backends_put] == [1, 2]
    assert counters[TWO.address] == 2
    assert (second.counters_taken, second.counters_freed) == ([3], [1])


def test_an_endpoint_in_both_sets_has_one_id() -> None:
    steps = Agent().plan({WEB: port_rows(ONE, TWO, ONE)})
    assert [row.counter for row in steps.backends_put] == [1, 2, 1]
    assert len(steps.endpoints_put) == 2


def test_a_position_names_the_first_and_the_last_slot_of_a_backend() -> None:
    steps = Agent().plan({WEB: port_rows(ONE, TWO, ONE, seconds=60)})
    slots = {row.position.address: row.slots for row in steps.positions_put}
    assert slots == {ONE.address: (0, 2), TWO.address: (1, 1)}


def test_what_is_remembered_is_what_was_written() -> None:
    agent = Agent()
    steps = agent.plan({WEB: port_rows(ONE, TWO)})
    (one,) = agent.ledger
    assert [one.row(slot) for slot in range(one.size)] == steps.backends_put
    assert one.frontends() == {row.frontend: row.policies for row in steps.frontends_put}


def test_counters_are_used_again_longest_unused_first() -> None:
    agent = Agent(max_backends=3)
    agent.plan({WEB: port_rows(ONE, TWO)})
    agent.plan({WEB: port_rows()})
    assert agent.plan({WEB: port_rows(THREE)}).counters_taken == [1]


def test_generations_and_service_ids_are_never_used_again() -> None:
    agent = Agent()
    seen = []
    for backends in ((ONE,), (TWO,), (ONE,)):
        (row,) = agent.plan({WEB: port_rows(*backends)}).frontends_put
        seen.append((row.service_id, row.generation))
    agent.plan({})
    (row,) = agent.plan({WEB: port_rows(ONE)}).frontends_put
    assert [*seen, (row.service_id, row.generation)] == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_a_full_map_is_named_with_its_flag_and_costs_nothing() -> None:
    agent = Agent(max_backends=2)
    with pytest.raises(MapFull, match=r"backend_counters.*--max-backends"):
        agent.plan({WEB: port_rows(ONE, TWO, THREE)})
    assert len(agent.plan({WEB: port_rows(ONE, TWO)}).counters_taken) == 2
