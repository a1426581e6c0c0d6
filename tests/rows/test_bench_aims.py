"""Every aim is reported: reached, missed, or not measured and why."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from bpfsvc.bench.aims import Aim, aims
from bpfsvc.bench.figures import SUITES
from bpfsvc.bench.results import Cell, Results


def _rate(mode: str, *values: float, services: int = 1, **fields: object) -> Cell:
    told: dict[str, object] = {
        "suite": "pods",
        "kind": "connect",
        "where": "pod",
        "unit": "per second",
    }
    return Cell(mode=mode, services=services, values=values, **(told | fields))  # type: ignore[arg-type]


def _cost(suite: str, kind: str, mode: str, *values: float, where: str = "") -> Cell:
    return Cell(
        suite=suite, kind=kind, mode=mode, services=0, where=where, unit="ns", values=values
    )


def _aim(results: Results, *parts: str) -> Aim:
    (found,) = [aim for aim in aims(results) if all(part in aim.text for part in parts)]
    return found


@pytest.mark.parametrize(
    ("scale", "remark"),
    [
        pytest.param({"suites": ["start"]}, "the suite {} was not run", id="not asked for"),
        pytest.param(
            {"suites": SUITES}, "the suite {} has no figures, see the notes", id="all of it failed"
        ),
        pytest.param({}, "no figures of the suite {}", id="nobody knows"),
    ],
)
def test_without_figures_every_aim_stands_there_and_says_why(
    scale: dict[str, object], remark: str
) -> None:
    found = aims(Results(scale=scale))
    assert len(found) == 20
    assert {aim.reached for aim in found} == {None}
    assert {aim.remark for aim in found} == {
        remark.format(suite) for suite in ("pods", "edge", "frames", "programs", "change")
    }


def test_an_aim_is_judged_by_the_median_of_ratios_of_rounds_not_by_the_ratio_of_medians() -> None:
    """Both slow down in the third round: as one, they are not."""
    results = Results(
        cells=[_rate("direct", 100, 200, 50), _rate("fast", 120, 200, 60)],
    )
    aim = _aim(results, "fast path against direct, connections, 1 Service")
    assert aim.measured == 1.2
    assert aim.quartiles == (1.1, 1.2)
    assert aim.reached is True
    assert [cell.mode for cell in aim.cells] == ["fast", "direct"]


@pytest.mark.parametrize(("rate", "reached"), [(97.0, True), (96.9, False)])
def test_an_aim_is_reached_from_its_goal_on(rate: float, reached: bool) -> None:
    results = Results(cells=[_rate("direct", 100), _rate("socket", rate)])
    assert _aim(results, "socket hook", "connections, 1 Service").reached is reached


def test_against_a_rival_the_best_of_ours_counts_and_is_named() -> None:
    results = Results(
        cells=[
            _rate(mode, *(rate * step for step in (1, 2, 1, 3)))
            for mode, rate in (("nftables", 100), ("tc", 105), ("fast", 125), ("xdp", 90))
        ]
    )
    aim = _aim(results, "best path against nftables,", "1 Service")
    assert (aim.measured, aim.remark, aim.reached) == (1.25, "fast", True)
    assert [cell.mode for cell in aim.cells] == ["fast", "nftables"]


def test_no_round_judges_a_mode_that_it_has_helped_to_choose() -> None:
    """Each mode has luck in one half of the rounds, and none of that counts."""
    results = Results(
        cells=[
            _rate("nftables", 100, 100, 100, 100),
            _rate("tc", 150, 101, 150, 102),
            _rate("fast", 103, 160, 104, 160),
        ]
    )
    aim = _aim(results, "best path against nftables,")
    assert aim.measured == 1.025
    assert aim.remark == "tc or fast"
    assert [cell.mode for cell in aim.cells] == ["tc", "fast", "nftables"]


def _simulated(chance: random.Random, rounds: int, **rates: float) -> Aim:
    """Give the aim of a run where each figure is off by some 4 %, and the machine by more."""
    machine = [chance.uniform(50, 100) for _ in range(rounds)]
    cells = [
        _rate(mode, *(rate * at * chance.gauss(1, 0.04) for at in machine))
        for mode, rate in rates.items()
    ]
    return _aim(Results(cells=cells), "best path against nftables,")


def _runs(rounds: int, **rates: float) -> list[Aim]:
    chance = random.Random(1)
    return [_simulated(chance, rounds, nftables=1.0, **rates) for _ in range(600)]


@pytest.mark.parametrize("rounds", [3, 7, 8])
def test_the_best_of_equal_modes_looks_no_better_than_each(rounds: int) -> None:
    """The largest of three medians would be 1.5 to 2.5 % too high."""
    found = [aim.measured or 0.0 for aim in _runs(rounds, tc=1.0, socket=1.0, fast=1.0)]
    error = statistics.stdev(found) / len(found) ** 0.5
    assert statistics.mean(found) == pytest.approx(1.0, abs=3 * error)
    assert error < 0.002


def test_a_clear_winner_is_named_alone_and_judged_by_all_rounds() -> None:
    found = _runs(7, tc=1.0, socket=1.05, fast=1.3)
    assert {aim.remark for aim in found} == {"fast"}
    assert statistics.mean(aim.measured or 0.0 for aim in found) == pytest.approx(1.3, abs=0.004)


def test_one_round_judges_one_mode_but_not_the_best_of_two() -> None:
    one = [_rate("nftables", 100), _rate("tc", 105)]
    aim = _aim(Results(cells=one), "best path against nftables,")
    assert (aim.measured, aim.remark) == (1.05, "tc")
    aim = _aim(Results(cells=[*one, _rate("fast", 110)]), "best path against nftables,")
    assert (aim.measured, aim.remark) == (
        *(None, "one round cannot both choose a mode and judge it"),
    )


def test_a_mode_that_broke_off_is_not_chosen_by_what_it_did_before() -> None:
    cells = [_rate("nftables", 100, 100), _rate("tc", 105, 107), _rate("fast", 150)]
    aim = _aim(Results(cells=cells), "best path against nftables,")
    assert (aim.measured, aim.remark) == (1.06, "tc")


def test_the_fewest_clients_count() -> None:
    results = Results(
        cells=[
            *(_rate("direct", 100, clients=number) for number in (16, 4)),
            _rate("tc", 120, clients=16),
            _rate("tc", 90, clients=4),
        ]
    )
    assert _aim(results, "tc through", "connections, 1 Service").measured == 0.9


def test_what_is_missing_is_named() -> None:
    results = Results(cells=[_rate("direct", 100), _rate("tc", 99), _rate("fast")])
    assert _aim(results, "tc", "connections, 10,000").remark == (
        "no cluster of 10,000 Services in this run"
    )
    failed = replace(results, scale={"services": [1, 10_000]})
    assert _aim(failed, "tc", "connections, 10,000").remark == (
        "no figures of 10,000 Services, see the notes"
    )
    assert _aim(results, "fast", "connections, 1 S").remark == "no figures of fast"
    assert _aim(results, "socket", "connections, 1 S").remark == "no figures of socket"
    assert _aim(results, "against nftables").remark == "no figures of nftables"


def test_node_ports_are_judged_at_the_smallest_and_the_largest_size() -> None:
    results = Results(
        cells=[
            _rate(mode, rate, rate, services=size, suite="edge", where="remote")
            for size in (1, 100, 1000)
            for mode, rate in (("iptables", 100), ("tc", 110), ("xdp", 115))
        ]
    )
    found = [aim for aim in aims(results) if aim.text.startswith("NodePort, remote, best")]
    assert [aim.text.rpartition(", ")[2] for aim in found] == ["1 Service", "1,000 Services"]
    assert all((aim.measured, aim.reached, aim.remark) == (1.15, True, "xdp") for aim in found)


def test_the_cost_of_a_packet_counts_above_a_dropped_one() -> None:
    """300 of 1000 ns above 500, round by round."""
    cells = [
        _cost("frames", "datagrams", mode, *values, where="remote")
        for mode, values in {
            "drop": (500, 600),
            "iptables": (1500, 1600),
            "xdp": (800, 900),
        }.items()
    ]
    aim = _aim(Results(cells=cells), "receive-and-drop")
    assert (aim.measured, aim.reached) == (0.3, True)
    assert _aim(Results(cells=cells[1:]), "receive-and-drop").remark == (
        "no figures of receive-and-drop"
    )
    free = [cells[0], _cost("frames", "datagrams", "iptables", 400, where="remote"), cells[2]]
    assert "no more than" in _aim(Results(cells=free), "receive-and-drop").remark


def test_every_program_that_established_packets_pass_is_judged_above_its_empty_one() -> None:
    cells = [
        _cost("programs", "established, TCP, ingress", "empty", 20, 22),
        _cost("programs", "established, TCP, ingress", "tc", 110, 112),
        _cost("programs", "established, TCP, egress", "empty", 20, 22),
        _cost("programs", "established, TCP, egress", "tc", 130, 132),
        _cost("programs", "first packet", "tc", 900, 900),
    ]
    found = [aim for aim in aims(Results(cells=cells)) if aim.unit == "ns"]
    assert [(aim.text.rpartition(": ")[2], aim.measured, aim.reached) for aim in found] == [
        ("tc, TCP, ingress", 90, True),
        ("tc, TCP, egress", 110, False),
    ]
    (alone,) = [aim for aim in aims(Results(cells=cells[1:2])) if aim.unit == "ns"]
    assert alone.remark == "no figures of an empty program"


def test_changes_are_judged_by_what_99_of_100_take() -> None:
    times = tuple(float(number) for number in range(1, 102))
    cell = Cell(suite="change", kind="change", mode="tc", services=10_000, unit="ms", values=times)
    aim = _aim(Results(cells=[cell]), "change to changed")
    assert (aim.measured, aim.reached) == (100, False)
