"""A map that is described in the registry is planned, compared and restored without more code."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from bpfsvc.services.entries import Backend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.plans import diff, drift, plan, registry, restore
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import MAPS
from bpfsvc.services.service_map import E, ServiceId, ServiceMap, extra_map, kernel_map
from tests.services.objects import frontend

WEB = ServicePort("default", "web", "http", 6, 4)
POLICY = Policy(0, 1, False, False)
WEB_FRONTEND = frontend("10.96.0.1 80")


class Limit(NamedTuple):
    service_id: int
    kind: int
    rate: int


LIMITS = extra_map("limits", Limit, 2, "--max-limits")
REFUSED = kernel_map("refused", "--max-services")


class Agent:
    """Applied state and entries of an agent whose plans are always written."""

    def __init__(self) -> None:
        self.ids = Ids(100)
        self.state = AppliedState()
        self.others: dict[str, list[Any]] = {}
        """What other programs have put into maps in place of the agent's entries."""

    def set_limits(self, *limits: tuple[int, int]) -> Plan:
        everyone = Policies(POLICY, POLICY, POLICY)
        backends = (Backend(frontend("10.0.0.1 1").address, 8080),)
        entries = PortEntries(80, backends, {WEB_FRONTEND: everyone}, {"limits": limits})
        return self._execute({WEB: entries})

    def remove(self) -> Plan:
        return self._execute({})

    def read(self, one: ServiceMap[E], /) -> list[E]:
        if one.name in self.others:
            return self.others[one.name]
        return [entry for each in self.state for entry in one.entries(each)]

    def _execute(self, wanted: dict[ServicePort, PortEntries]) -> Plan:
        found = diff.plan(self.state.of(("default", "web")), wanted, self.ids)
        self.state.update(found.applied)
        return found


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent with two more maps."""
    for module in (plan, diff, drift, restore):
        monkeypatch.setattr(module, "MAPS", (*MAPS[:-1], LIMITS, REFUSED, MAPS[-1]))
    return Agent()


def test_entries_of_a_service_port_are_written_and_deleted(agent: Agent) -> None:
    assert agent.set_limits((1, 10), (2, 20)).puts(LIMITS) == [(1, 1, 10), (1, 2, 20)]
    changed = agent.set_limits((1, 10), (2, 21), (3, 30))
    assert changed.puts(LIMITS) == [(1, 2, 21), (1, 3, 30)]
    assert not changed.puts(registry.BACKENDS)
    assert agent.set_limits((3, 30)).deletes(LIMITS) == [(1, 1), (1, 2)]
    assert agent.remove().deletes(LIMITS) == [(1, 3)]


def test_entries_of_a_new_map_are_put_before_the_frontends_and_deleted_after_them(
    agent: Agent,
) -> None:
    puts = [one.name for one, _ in agent.set_limits((1, 10)).put_phases()]
    deletes = [one.name for one, _ in agent.remove().delete_phases()]
    assert puts == ["services", "endpoints", "backends", "limits", "frontends"]
    ends = ["backends", "endpoints", "refusals", "services"]
    assert deletes == ["frontends", "refused", "limits", *ends]


@pytest.mark.parametrize(
    ("found", "puts", "deletes"),
    [
        pytest.param([Limit(1, 1, 10)], [], [], id="as written"),
        pytest.param([], [(1, 1, 10)], [], id="missing"),
        pytest.param([Limit(1, 1, 11)], [(1, 1, 10)], [], id="changed"),
        pytest.param([Limit(1, 1, 10), Limit(1, 2, 0)], [], [(1, 2)], id="one too many"),
        pytest.param([Limit(1, 1, 10), Limit(9, 1, 0)], [], [(9, 1)], id="of no service port"),
    ],
)
def test_drift_is_found(
    agent: Agent, found: list[Limit], puts: list[Limit], deletes: list[tuple[int, int]]
) -> None:
    agent.set_limits((1, 10))
    agent.others["limits"] = found
    repair, differing = drift.find_drift(agent.state, agent.read)
    assert (repair.puts(LIMITS), repair.deletes(LIMITS)) == (puts, deletes)
    assert differing == len(puts) + len(deletes)


def test_entries_of_a_new_map_are_restored_with_their_service_port_and_others_are_strays(
    agent: Agent,
) -> None:
    agent.set_limits((1, 10), (2, 20))
    agent.others["limits"] = [Limit(9, 1, 0), Limit(1, 2, 20), Limit(1, 1, 10)]
    found = restore.restore(agent.read, Ids(100))
    assert found.applied == tuple(agent.state)
    assert found.strays.deletes(LIMITS) == [(9, 1)]


def test_entries_of_the_programs_stay_with_a_restored_service_port(agent: Agent) -> None:
    """An id that has such an entry is not used again."""
    agent.set_limits((1, 10))
    agent.others["refused"] = [ServiceId(1), ServiceId(9)]
    ids = Ids(100)
    assert restore.restore(agent.read, ids).strays.deletes(REFUSED) == [9]
    assert ids.new_service() == 10


def test_entries_of_the_programs_are_only_deleted(agent: Agent) -> None:
    assert not agent.set_limits().puts(REFUSED)
    agent.others["refused"] = []
    assert drift.find_drift(agent.state, agent.read)[1] == 0
    agent.others["refused"] = [ServiceId(1), ServiceId(9)]
    repair, differing = drift.find_drift(agent.state, agent.read)
    assert (repair.deletes(REFUSED), differing) == ([9], 1)
    assert agent.remove().deletes(REFUSED) == [1]
