"""Every aim is reported: reached, missed, or not measured and why."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.devtools.bench.aims import Aim, aims
from bpfsvc.devtools.bench.figures import SUITES
from bpfsvc.devtools.bench.results import Cell, Results
from tests.bench.measured import cell_of


def _aim(results: Results, *parts: str) -> Aim:
    (aim,) = [aim for aim in aims(results) if all(part in aim.text for part in parts)]
    return aim


_DEFAULT = ("default (sockets)", "against direct", ", 1 Service")


@pytest.mark.parametrize(
    ("scale", "remark"),
    [
        ({"suites": ["start"]}, "the suite {} was not run"),
        ({"suites": SUITES}, "the suite {} has no figures, see the notes"),
        ({}, "no figures of the suite {}"),
    ],
    ids=["not asked for", "all of it failed", "the scale does not say"],
)
def test_without_figures_every_aim_is_listed_and_says_why(
    scale: dict[str, Any], remark: str
) -> None:
    listed = aims(Results(scale=scale))
    assert len({aim.text for aim in listed}) == 37
    assert {aim.reached for aim in listed} == {None}
    assert {aim.remark for aim in listed} == {
        remark.format(suite) for suite in ("pods", "edge", "change")
    }


@pytest.mark.parametrize(
    ("mode", "other", "fields", "parts", "goals"),
    [
        ("default", "kube-proxy-iptables", {}, ("default: ", "iptables"), (1.5, 10)),
        ("default", "direct", {"kind": "questions"}, ("UDP",), (1.1, 1.1)),
        ("default", "direct", {"suite": "edge", "where": "local"}, ("backend here",), (1.1, 1.1)),
        ("stack-tc", "kube-proxy-nftables", {}, ("stack path", "tc,"), (0.97, 0.97)),
    ],
)
def test_each_aim_compares_its_modes_at_both_sizes(
    mode: str, other: str, fields: dict[str, Any], parts: tuple[str, ...], goals: tuple[float, ...]
) -> None:
    """And no other aim is judged by these figures."""
    for services, size, goal in zip((1, 10_000), ("1 S", "10,000 S"), goals, strict=True):
        rates = {mode: 150, other: 100}
        cells = [cell_of(name, rate, services=services, **fields) for name, rate in rates.items()]
        results = Results(cells=cells)
        aim = _aim(results, *parts, f", {size}")
        assert (aim.measured, aim.goal, aim.at_most) == (1.5, goal, False)
        assert [other for other in aims(results) if other.measured is not None] == [aim]


def test_nodes_with_policies_have_aims_of_their_own_and_are_judged_by_no_others() -> None:
    cells = [cell_of("default", 110), cell_of("kube-proxy-nftables", 100)]
    without, policed = (
        Results(cells=cells, scale={"policies": policies}) for policies in (False, True)
    )
    usual, own = ("default: connect", "nftables", ", 1 S"), ("policies", "connections", ", 1 S")
    assert _aim(without, *usual).measured == _aim(policed, *own).measured == 1.1
    assert _aim(policed, *usual).remark == "judged without --policies"
    assert _aim(without, *own).remark == "judged with --policies"


def test_an_aim_is_judged_by_the_median_of_ratios_of_rounds_not_by_the_ratio_of_medians() -> None:
    """Both modes slow down in the third round; their ratio does not."""
    results = Results(cells=[cell_of("direct", 100, 200, 50), cell_of("default", 130, 200, 65)])
    aim = _aim(results, *_DEFAULT)
    assert (aim.measured, aim.quartiles, aim.reached) == (1.3, (1.15, 1.3), True)


@pytest.mark.parametrize(("rate", "reached"), [(128.0, True), (127.9, False)])
def test_an_aim_is_reached_from_its_goal_on(rate: float, reached: bool) -> None:
    results = Results(cells=[cell_of("direct", 100), cell_of("default", rate)])
    assert _aim(results, *_DEFAULT).reached is reached


@pytest.mark.parametrize(("cost", "reached"), [(80.0, True), (81.0, False)])
def test_cpu_time_is_to_be_less_and_is_compared_round_by_round(cost: float, reached: bool) -> None:
    cells = [
        cell_of("direct", 1, 1, cpu=(100.0, 50.0)),
        cell_of("default", 1, 1, cpu=(cost, cost / 2)),
    ]
    aim = _aim(Results(cells=cells), "CPU per connection", ", 1 Service")
    assert (aim.measured, aim.reached) == (cost / 100, reached)
    not_counted = Results(cells=[cell.having(cpu=()) for cell in cells])
    assert _aim(not_counted, "CPU per", ", 1 S").remark == "no figures of direct"


def test_the_fewest_clients_count() -> None:
    cells = [cell_of("direct", 100, clients=number) for number in (16, 4)]
    cells += [cell_of("default", 120, clients=16), cell_of("default", 90, clients=4)]
    assert _aim(Results(cells=cells), *_DEFAULT).measured == 0.9


def test_missing_figures_are_named() -> None:
    cells = [cell_of("direct", 100), cell_of("default", 99), cell_of("tc")]
    large = ("default (sockets)", "10,000")
    assert _aim(Results(cells=cells), *large).remark == "no cluster of 10,000 Services in this run"
    failed = Results(cells=cells, scale={"services": [1, 10_000]})
    assert _aim(failed, *large).remark == "no figures of 10,000 Services, see the notes"
    assert _aim(failed, "--socket-lb off", ", 1 S").remark == "no figures of tc"
    assert _aim(failed, "default: ", "nftables", ", 1 S").remark == (
        "no figures of kube-proxy-nftables"
    )


def test_changes_at_the_api_are_judged_by_what_99_of_100_take() -> None:
    times = tuple(float(number) for number in range(1, 102))
    cell = Cell("change", "change", "default", 10_000, "ms", times, where="API")
    aim = _aim(Results(cells=[cell.having(where="json", values=(1.0,)), cell]), "change at the API")
    assert (aim.measured, aim.reached) == (100, False)
