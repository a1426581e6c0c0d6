"""What a turn's figures are made of: whose time is counted, and the note when some is not."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfsvc.devtools.bench import clocks
from bpfsvc.devtools.bench.figures import Scale
from bpfsvc.devtools.bench.load import ports
from bpfsvc.devtools.bench.load.ports import FORGOTTEN, PORTS, SourcePorts
from bpfsvc.devtools.bench.load.tool import Outcome
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.suites import turns
from bpfsvc.devtools.bench.suites.turns import NOT_COUNTED, Task, measure
from bpfsvc.devtools.bench.testbeds.upkeep import Upkeep

SCALE = Scale(services=(1,), clients=(1, 4), rounds=3, slices=2)
CONNECT = Task("pods", "connect", "pod", 1)
_RATE, _COST = 10_000, 80e-6


@dataclass
class _Time:
    """A clock that advances while the code sleeps or works."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class _Testbed:
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


def _agents(testbed: _Testbed, cost: float, loop: float = 0.01) -> Upkeep:
    """Return one thread that works for connections and one that polls files in a loop.

    ``each``: its CPU seconds of a connection. ``loop``: those of the other thread in a second.
    """
    return Upkeep(
        lambda: {1: testbed.time.now * 0.001 + testbed.done * cost, 2: testbed.time.now * loop}, []
    )


def _measured(
    monkeypatch: pytest.MonkeyPatch,
    testbeds: Iterable[_Testbed],
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
        measure(task, cast(Any, [*testbeds]), scale, results)
    return results


def test_cpu_time_of_agents_for_connections_is_reported_and_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured with the fewest clients, added to the cost of all; what they do anyhow is not."""
    time = _Time()
    direct, ours = _Testbed("direct", time), _Testbed("tc", time)
    ours.upkeep = _agents(ours, 11e-6)
    tasks = (CONNECT, CONNECT._replace(clients=4))
    results = _measured(monkeypatch, [direct, ours], time, tasks=tasks)
    (cell,) = results.find(suite="agents")
    assert (cell.kind, cell.where, cell.mode, cell.clients) == ("connect", "pod", "tc", 1)
    assert cell.values == pytest.approx((11,))
    assert results.notes == []
    for clients in (1, 4):
        costs = {cell.mode: cell.cpu for cell in results.find(suite="pods", clients=clients)}
        assert costs["direct"] == pytest.approx([80] * 3)
        assert costs["tc"] == pytest.approx([91] * 3)


def test_a_loop_that_grows_with_the_load_of_the_machine_is_no_work_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = _Time()
    direct, ours = _Testbed("direct", time), _Testbed("tc", time)
    # Half as much again while connections are made.
    ours.upkeep = Upkeep(lambda: {1: time.now * 0.01 + ours.done * 2e-7}, [])
    results = _measured(monkeypatch, [direct, ours], time)
    assert results.find(suite="agents")[0].values == (0.0,)


@pytest.mark.parametrize(
    ("apart", "share", "counted"),
    [(False, 0.4, True), (True, 0.9, False), (None, 0.4, False), (None, 0.9, True)],
)
def test_cpu_time_without_softirqs_is_not_given(
    monkeypatch: pytest.MonkeyPatch, apart: bool | None, share: float, counted: bool
) -> None:
    """The kernel's configuration decides, or the counted part of a busy core's time; one note."""
    time = _Time()
    testbeds = [_Testbed(mode, time, share) for mode in ("direct", "iptables")]
    tasks = (CONNECT, CONNECT._replace(clients=4))
    results = _measured(monkeypatch, testbeds, time, apart=apart, tasks=tasks)
    assert all(bool(cell.cpu) is counted for cell in results.cells)
    assert results.notes == ([] if counted else [NOT_COUNTED])


def test_a_kernels_configuration_is_read_wherever_it_is(tmp_path: Path) -> None:
    packed, plain = tmp_path / "config.gz", tmp_path / "config"
    assert clocks.interrupts_apart([packed, plain]) is None
    plain.write_bytes(b"# CONFIG_IRQ_TIME_ACCOUNTING is not set\n")
    assert clocks.interrupts_apart([packed, plain]) is False
    packed.write_bytes(gzip.compress(b"CONFIG_A=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\n"))
    assert clocks.interrupts_apart([packed, plain]) is True


def assert_within(
    taken: SourcePorts,
    time: _Time,
    number: int,
    times: int,
    *,
    most: int,
    seconds: float,
    idle: float,
) -> None:
    """Take a ``number`` of ports so many times; never are more than ``most`` in use at once.

    A turn lasts 0.06 s, and ``idle`` seconds are between two. Each port is in use for ``seconds``.
    """
    history: list[tuple[float, int]] = []
    for _ in range(times):
        taken.wait()
        time.now += 0.06
        taken.note_taken(number)
        history.append((time.now, number))
        assert sum(ports for at, ports in history if at > time.now - seconds) <= most
        time.now += idle


def test_source_ports_are_reused_after_their_flows_have_expired() -> None:
    """However fast questions are: no longer than that is waited for, and only when it is needed."""
    time = _Time()
    taken = SourcePorts(clock=time.clock, sleep=time.sleep)
    assert_within(taken, time, 2400, 100, most=PORTS, seconds=FORGOTTEN, idle=0)
    assert time.slept
    assert time.now - 100 < 100 * 2400 / PORTS * (FORGOTTEN + 0.5)
    slow = _Time()
    taken = SourcePorts(clock=slow.clock, sleep=slow.sleep)
    for _ in range(100):
        taken.wait()
        slow.now += 0.4
        taken.note_taken(2400)
    assert slow.slept == []


def test_all_ports_are_fewer_than_the_load_tool_has() -> None:
    text = Path(ports.__file__).with_suffix(".c").read_text()
    words = [line.split() for line in text.splitlines() if line.startswith("#define")]
    named = {name: int(value) for _, name, value in words}
    before = named["FIRST_NODE_PORT"] - named["FIRST_PORT"]
    assert before + named["AFTER_PORTS"] - named["AFTER_NODE_PORTS"] >= PORTS
