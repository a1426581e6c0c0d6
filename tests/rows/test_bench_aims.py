"""Every aim is reported: reached, missed, or not measured and why."""

from __future__ import annotations

import pytest

from bpfsvc.bench.aims import Aim, aims
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


def test_without_figures_every_aim_stands_there_and_says_why() -> None:
    found = aims(Results())
    assert len(found) == 20
    assert {aim.reached for aim in found} == {None}
    assert {aim.remark for aim in found} == {
        f"the suite {suite} was not run"
        for suite in ("pods", "edge", "frames", "programs", "change")
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
        cells=[_rate("nftables", 100), _rate("tc", 105), _rate("fast", 125), _rate("xdp", 90)]
    )
    aim = _aim(results, "best path against nftables,", "1 Service")
    assert (aim.measured, aim.remark, aim.reached) == (1.25, "fast", True)


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
    assert _aim(results, "socket", "connections, 1 S").remark == "no figures of socket"
    assert _aim(results, "against nftables").remark == "no figures of nftables"


def test_node_ports_are_judged_at_the_smallest_and_the_largest_size() -> None:
    results = Results(
        cells=[
            _rate(mode, rate, services=size, suite="edge", where="remote")
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
