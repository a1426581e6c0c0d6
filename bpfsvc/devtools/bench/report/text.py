"""Numbers of three digits (no benchmark can promise more), and the words of all reports."""

from __future__ import annotations

from bpfsvc.devtools.bench.aims import Aim
from bpfsvc.devtools.bench.figures import Spread, duration_text
from bpfsvc.devtools.bench.results import Cell, Results, noisy

JUDGED = (
    "Two modes are compared by the median of the ratios of their rounds, with the fewest clients "
    "measured."
)
"""How aims are judged."""

COMMAND = "make bench ARGS='--markdown docs/benchmarks.md'"
"""How to repeat it, in a checkout of the repository, as root; with kube-proxy in PATH."""

AIM_HEADS = ("aim", "goal", "measured", "quartiles", "result")
LOSS_HEADS = ("where", "size", "clients", "mode", "measured", "against", "ratio")

_PODS = {
    "routed": "pods: nodes have a route to the interface of each",
    "bridge": "pods: on a bridge of their node",
}
_PINNED = {
    True: "pinned: client, server and the nodes' work on their packets share one CPU",
    False: "not pinned: client and server run on any CPU, where the kernel places them",
}
_POLICIES = "policies: nftables on the nodes judges new connections and accepts established ones"


def short(value: float) -> str:
    """Return three digits, with k, M or G: 12.3k."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return digits(value / size) + sign
    return digits(value)


def digits(value: float) -> str:
    """Return three digits, or the whole number if it is longer: 0.123, 12.3, 1,234."""
    size = abs(value)
    if not size:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def factor(value: float) -> str:
    """Return a ratio with three decimals, so that 0.997 does not look like 1; or 12.3."""
    return f"{value:.3f}" if abs(value) < 9.9995 else digits(value)


def span(values: tuple[float, ...]) -> str:
    """Return how far the quartiles lie from the median, in percent; at least one value."""
    spread = Spread.of(values)
    return f"±{spread.width / 2 * 100:.0f}%" if len(values) > 1 and spread.median else ""


def measured(cell: Cell) -> str:
    """Return the median of a cell as its unit is read best."""
    return short(cell.median) if cell.more_is_better else digits(cell.median)


def aim_row(aim: Aim) -> tuple[str, str, str, str, str]:
    """Return an aim in the words of ``AIM_HEADS``; the result is a word, no colour is needed."""
    unit = f" {aim.unit}" if aim.unit else ""
    number = digits if aim.unit else factor
    goal = f"{'≤' if aim.at_most else '≥'} {aim.goal:g}{unit}"
    if aim.measured is None:
        return aim.text, goal, "", "", f"not measured: {aim.remark}"
    quartiles = " to ".join(map(number, aim.quartiles))
    result = "reached" if aim.reached else "MISSED"
    return aim.text, goal, f"{number(aim.measured)}{unit}", quartiles, result


def setting(results: Results) -> list[str]:
    """Return lines about the machine, the pods, the CPUs, the date and the length of the run."""
    machine, scale = dict(results.machine), results.scale
    mitigations = machine.pop("mitigations", "")
    lines = [", ".join(f"{key} {value}" for key, value in machine.items()) or "machine unknown"]
    if mitigations:
        lines.append(f"mitigations of CPU faults: {mitigations}")
    if "pods" in scale:
        lines.append(_PODS[scale["pods"]])
    if "pin" in scale:
        lines.append(_PINNED[scale["pin"]])
    if scale.get("policies"):
        lines.append(_POLICIES)
    took = [results.date] if results.date else []
    took.append(f"took {duration_text(results.seconds)}")
    if rounds := scale.get("rounds"):
        took.append(f"{rounds} rounds")
    quick = "; a quick run: fewer rounds and sizes, more spread" if results.quick else ""
    return [*lines, ", ".join(took) + quick]


def remarks(results: Results) -> list[str]:
    """Return the notes of the run, and a warning for each suite with a restless reference."""
    suites = dict.fromkeys(cell.suite for cell in results.cells)
    warnings = (noisy(results.find(suite=suite, mode="direct")) for suite in suites)
    return [*dict.fromkeys((*results.notes, *filter(None, warnings)))]
