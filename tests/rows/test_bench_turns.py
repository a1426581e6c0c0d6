"""What a turn's figures are made of: whose time is counted, and what is told when some is not."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfsvc.bench.figures import QUICK, Scale
from bpfsvc.bench.load import Outcome, ports
from bpfsvc.bench.load.ports import FORGOTTEN, PORTS, Ports
from bpfsvc.bench.processes import clocks
from bpfsvc.bench.results import Results
from bpfsvc.bench.stands.upkeep import Upkeep
from bpfsvc.bench.suites import turns
from bpfsvc.bench.suites.turns import NOT_COUNTED, Task, measure

SCALE = Scale(services=(1,), clients=(1, 4), rounds=3, slices=2)
CONNECT = Task("pods", "connect", "pod", 1)
_RATE, _COST = 10_000, 80e-6


@dataclass
class _Time:
    """A clock that goes on when somebody sleeps or works."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class _Stand:
    """Does ten operations a millisecond, of which each costs 80 µs on a busy core."""

    mode: str
    time: _Time
    share: float = 0.8
    upkeep: Upkeep | None = None
    cluster: Any = field(default_factory=lambda: SimpleNamespace(services=1))
    done: int = 0

    def run(self, kind: str, where: str, clients: int, seconds: float) -> tuple[Outcome, float]:
        assert (kind, where, clients) in {("connect", "pod", 1), ("connect", "pod", 4)}
        self.time.now += seconds
        made = round(_RATE * seconds)
        self.done += made
        return Outcome(operations=made, seconds=seconds), made * _COST * self.share / 0.8


def _agents(stand: _Stand, each: float, loop: float = 0.01) -> Upkeep:
    """Give one thread that works for connections and one that follows files in a loop.

    ``each``: its CPU seconds of a connection. ``loop``: those of the other thread in a second.
    """
    return Upkeep(
        lambda: {1: stand.time.now * 0.001 + stand.done * each, 2: stand.time.now * loop}, []
    )


def _measured(
    monkeypatch: pytest.MonkeyPatch,
    stands: Iterable[_Stand],
    time: _Time,
    *,
    apart: bool | None = False,
    tasks: Iterable[Task] = (CONNECT,),
    scale: Scale = SCALE,
) -> Results:
    """Measure without a kernel."""
    monkeypatch.setattr("time.monotonic", time.clock)
    monkeypatch.setattr("time.sleep", time.sleep)
    monkeypatch.setattr(turns, "this_kernel_keeps_apart", lambda: apart)
    results = Results()
    for task in tasks:
        measure(task, cast(Any, [*stands]), scale, results)
    return results


def test_what_agents_do_for_connections_is_told_and_counted_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured with the fewest clients, added to the cost of all; what they do anyhow is not."""
    time = _Time()
    direct, ours = _Stand("direct", time), _Stand("tc", time)
    ours.upkeep = _agents(ours, 11e-6)
    tasks = (CONNECT, CONNECT._replace(clients=4))
    results = _measured(monkeypatch, [direct, ours], time, tasks=tasks)
    (told,) = results.find(suite="agents")
    assert (told.kind, told.where, told.mode, told.clients) == ("connect", "pod", "tc", 1)
    assert told.values == pytest.approx((11,))
    assert results.notes == []
    for clients in (1, 4):
        costs = {cell.mode: cell.cpu for cell in results.find(suite="pods", clients=clients)}
        assert costs["direct"] == pytest.approx([80] * 3)
        assert costs["tc"] == pytest.approx([91] * 3)


def test_a_loop_that_grows_with_the_load_of_the_machine_is_no_work_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = _Time()
    direct, ours = _Stand("direct", time), _Stand("tc", time)
    # Half as much again while connections are made.
    ours.upkeep = Upkeep(lambda: {1: time.now * 0.01 + ours.done * 2e-7}, [])
    results = _measured(monkeypatch, [direct, ours], time)
    assert results.find(suite="agents")[0].values == (0.0,)


def test_a_run_in_a_hurry_waits_for_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    time = _Time()
    direct, ours = _Stand("direct", time), _Stand("tc", time)
    ours.upkeep = _agents(ours, 11e-6)
    results = _measured(monkeypatch, [direct, ours], time, scale=QUICK)
    assert results.find(suite="agents") == []
    assert results.find(mode="tc")[0].cpu == pytest.approx([80] * 3)
    assert time.slept == []


@pytest.mark.parametrize(
    ("kind", "where", "clients", "limit", "more"),
    [
        ("connect", "pod", 1, 0, 15),
        ("connect", "pod", 4, 0, 0),
        ("connect", "node", 1, 0, 8),
        ("questions", "pod", 1, 3600, 8),
        ("request", "pod", 1, 0, 0),
        ("connect", "pod", 1, 160, 0),
    ],
)
def test_the_wait_for_agents_is_a_part_of_the_plan(
    kind: str, where: str, clients: int, limit: float, more: float
) -> None:
    scale = Scale(clients=(1, 4), limit=limit)
    base = Task("pods", "bulk", where, clients).seconds(3, scale)
    assert Task("pods", kind, where, clients).seconds(3, scale) == pytest.approx(base + more)


@pytest.mark.parametrize(
    ("apart", "share", "counted"),
    [(False, 0.4, True), (True, 0.9, False), (None, 0.4, False), (None, 0.9, True)],
)
def test_cpu_time_without_softirqs_is_not_given(
    monkeypatch: pytest.MonkeyPatch, apart: bool | None, share: float, counted: bool
) -> None:
    """The kernel's configuration tells, or how much of a busy core's time is counted; one note."""
    time = _Time()
    stands = [_Stand(mode, time, share) for mode in ("direct", "iptables")]
    tasks = (CONNECT, CONNECT._replace(clients=4))
    results = _measured(monkeypatch, stands, time, apart=apart, tasks=tasks)
    assert all(bool(cell.cpu) is counted for cell in results.cells)
    assert results.notes == ([] if counted else [NOT_COUNTED])


def test_a_kernels_configuration_is_read_wherever_it_is(tmp_path: Path) -> None:
    packed, plain = tmp_path / "config.gz", tmp_path / "config"
    assert clocks.interrupts_apart([packed, plain]) is None
    plain.write_bytes(b"# CONFIG_IRQ_TIME_ACCOUNTING is not set\n")
    assert clocks.interrupts_apart([packed, plain]) is False
    packed.write_bytes(gzip.compress(b"CONFIG_A=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\n"))
    assert clocks.interrupts_apart([packed, plain]) is True


def test_source_ports_come_again_when_nobody_remembers_them() -> None:
    """However fast questions are: no longer than that is waited for, and only when it is needed."""
    time = _Time()
    taken = Ports(time.clock, time.sleep)
    history: list[tuple[float, int]] = []
    for _ in range(100):
        taken.wait()
        time.now += 0.06
        taken.take(2400)
        history.append((time.now, 2400))
        assert sum(each for at, each in history if at > time.now - FORGOTTEN) <= PORTS
    assert time.slept
    assert time.now - 100 < 100 * 2400 / PORTS * (FORGOTTEN + 0.5)
    slow = _Time()
    taken = Ports(slow.clock, slow.sleep)
    for _ in range(100):
        taken.wait()
        slow.now += 0.4
        taken.take(2400)
    assert slow.slept == []


def test_all_ports_are_fewer_than_the_load_tool_has() -> None:
    text = Path(ports.__file__).with_suffix(".c").read_text()
    words = [line.split() for line in text.splitlines() if line.startswith("#define")]
    named = {name: int(value) for _, name, value in words}
    before = named["FIRST_NODE_PORT"] - named["FIRST_PORT"]
    assert before + named["AFTER_PORTS"] - named["AFTER_NODE_PORTS"] >= PORTS
