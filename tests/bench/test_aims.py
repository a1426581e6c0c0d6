"""Every aim is reported: reached, missed, or not measured and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.devtools.bench.aims import Aim, aims
from bpfsvc.devtools.bench.figures import SUITES
from bpfsvc.devtools.bench.results import Cell, Results


def _rate(mode: str, *values: float, services: int = 1, **fields: object) -> Cell:
    usual: dict[str, object] = {
        "suite": "pods",
        "kind": "connect",
        "where": "pod",
        "unit": "per second",
    }
    return Cell(mode=mode, services=services, values=values, **(usual | fields))  # type: ignore[arg-type]


def _cost(kind: str, mode: str, *values: float) -> Cell:
    return Cell(suite="programs", kind=kind, mode=mode, services=0, unit="ns", values=values)


def _aim(results: Results, *parts: str) -> Aim:
    (found,) = [aim for aim in aims(results) if all(part in aim.text for part in parts)]
    return found


_DEFAULT = ("default (sockets)", "against direct", ", 1 Service")


@pytest.mark.parametrize(
    ("scale", "remark"),
    [
        pytest.param({"suites": ["start"]}, "the suite {} was not run", id="not asked for"),
        pytest.param(
            {"suites": SUITES}, "the suite {} has no figures, see the notes", id="all of it failed"
        ),
        pytest.param({}, "no figures of the suite {}", id="the scale does not say"),
    ],
)
def test_without_figures_every_aim_is_listed_and_says_why(
    scale: dict[str, object], remark: str
) -> None:
    found = aims(Results(scale=scale))
    assert len(found) == 34
    assert len({aim.text for aim in found}) == 34
    assert {aim.reached for aim in found} == {None}
    assert {aim.remark for aim in found} == {
        remark.format(suite) for suite in ("pods", "edge", "programs", "change")
    }


@pytest.mark.parametrize(
    ("mode", "other", "fields", "parts", "goals"),
    [
        ("default", "direct", {}, ("default (sockets)",), (1.28, 1.28)),
        ("tc", "direct", {}, ("--socket-lb off", "against direct"), (1.2, 1.2)),
        ("default", "kube-proxy-nftables", {}, ("default: ", "nftables"), (1.35, 1.35)),
        ("default", "kube-proxy-iptables", {}, ("default: ", "iptables"), (1.5, 10)),
        ("default", "direct", {"kind": "request"}, ("request/response",), (1.15, 1.15)),
        ("default", "direct", {"kind": "questions"}, ("UDP",), (1.1, 1.1)),
        ("default", "direct", {"kind": "bulk"}, ("bulk",), (1.0, 1.0)),
        ("default", "direct", {"suite": "edge", "where": "remote"}, ("elsewhere",), (0.9, 0.9)),
        ("default", "direct", {"suite": "edge", "where": "local"}, ("backend here",), (1.1, 1.1)),
        ("established", "kube-proxy-nftables", {}, ("established", "connect"), (1.05, 1.05)),
        (
            "established",
            "kube-proxy-nftables",
            {"kind": "request"},
            ("established", "requests"),
            (1.2, 1.2),
        ),
        ("stack", "kube-proxy-nftables", {}, ("stack path", "default"), (1.0, 1.0)),
        ("stack-tc", "kube-proxy-nftables", {}, ("stack path", "tc,"), (0.97, 0.97)),
        ("no-service", "direct", {}, ("no Service", "auto"), (1.2, 1.2)),
        ("no-service-stack", "direct", {}, ("no Service", ": off"), (0.98, 0.98)),
    ],
)
def test_each_aim_compares_its_modes_at_both_sizes(
    mode: str,
    other: str,
    fields: dict[str, object],
    parts: tuple[str, ...],
    goals: tuple[float, float],
) -> None:
    """And no other aim is judged by these figures."""
    for services, goal in zip((1, 10_000), goals, strict=True):
        rates = {mode: 150, other: 100}
        results = Results(
            cells=[_rate(name, rate, services=services, **fields) for name, rate in rates.items()]
        )
        size = "1 Service" if services == 1 else "10,000 Services"
        aim = _aim(results, *parts, f", {size}")
        assert (aim.measured, aim.goal, aim.at_most) == (1.5, goal, False)
        assert [each for each in aims(results) if each.measured is not None] == [aim]


def test_an_aim_is_judged_by_the_median_of_ratios_of_rounds_not_by_the_ratio_of_medians() -> None:
    """Both slow down in the third round: as one, they are not."""
    results = Results(cells=[_rate("direct", 100, 200, 50), _rate("default", 130, 200, 65)])
    aim = _aim(results, *_DEFAULT)
    assert aim.measured == 1.3
    assert aim.quartiles == (1.15, 1.3)
    assert aim.reached is True
    assert [cell.mode for cell in aim.cells] == ["default", "direct"]


@pytest.mark.parametrize(("rate", "reached"), [(128.0, True), (127.9, False)])
def test_an_aim_is_reached_from_its_goal_on(rate: float, reached: bool) -> None:
    results = Results(cells=[_rate("direct", 100), _rate("default", rate)])
    assert _aim(results, *_DEFAULT).reached is reached


@pytest.mark.parametrize(("cost", "reached"), [(80.0, True), (81.0, False)])
def test_cpu_time_is_to_be_less_and_is_compared_round_by_round(cost: float, reached: bool) -> None:
    cells = [
        _rate("direct", 1, 1, cpu=(100.0, 50.0)),
        _rate("default", 1, 1, cpu=(cost, cost / 2)),
    ]
    aim = _aim(Results(cells=cells), "CPU per connection", ", 1 Service")
    assert (aim.measured, aim.reached) == (cost / 100, reached)


def test_cpu_time_that_was_not_counted_is_no_figure() -> None:
    results = Results(cells=[_rate("direct", 1), _rate("default", 1)])
    assert _aim(results, "CPU per connection", ", 1 S").remark == "no figures of direct"


def test_the_fewest_clients_count() -> None:
    results = Results(
        cells=[
            *(_rate("direct", 100, clients=number) for number in (16, 4)),
            _rate("default", 120, clients=16),
            _rate("default", 90, clients=4),
        ]
    )
    assert _aim(results, *_DEFAULT).measured == 0.9


def test_missing_figures_are_named() -> None:
    results = Results(cells=[_rate("direct", 100), _rate("default", 99), _rate("tc")])
    large = ("default (sockets)", "10,000")
    assert _aim(results, *large).remark == "no cluster of 10,000 Services in this run"
    failed = replace(results, scale={"services": [1, 10_000]})
    assert _aim(failed, *large).remark == "no figures of 10,000 Services, see the notes"
    assert _aim(results, "--socket-lb off", "1 S").remark == "no figures of tc"
    assert _aim(results, "default: ", "nftables", "1 S").remark == (
        "no figures of kube-proxy-nftables"
    )


def test_the_dearest_program_that_established_packets_pass_is_judged_above_its_empty_one() -> None:
    cells = [
        _cost("established, TCP, ingress", "empty", 20, 22),
        _cost("established, TCP, ingress", "default", 110, 112),
        _cost("established, TCP, egress", "empty", 20, 22),
        _cost("established, TCP, egress", "default", 130, 132),
        _cost("first packet", "default", 900, 900),
    ]
    aim = _aim(Results(cells=cells), "established packet")
    assert (aim.remark, aim.measured, aim.reached) == ("TCP, egress", 110, False)
    assert _aim(Results(cells=cells[:2]), "established packet").reached is True
    alone = _aim(Results(cells=cells[1:2]), "established packet")
    assert alone.remark == "no figures of an empty program"


def test_changes_at_the_api_are_judged_by_what_99_of_100_take() -> None:
    times = tuple(float(number) for number in range(1, 102))
    cell = Cell("change", "change", "default", 10_000, "ms", times, where="API")
    files = replace(cell, where="json", values=(1.0,))
    aim = _aim(Results(cells=[files, cell]), "change at the API")
    assert (aim.measured, aim.reached) == (100, False)
