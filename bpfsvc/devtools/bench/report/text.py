"""What all reports say in words and in numbers of three digits: no benchmark can promise more."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.devtools.bench.aims import Aim
from bpfsvc.devtools.bench.figures import Spread, duration_text
from bpfsvc.devtools.bench.results import Cell, Results, noisy

JUDGED = (
    "Two modes are compared by the median of the ratios of their rounds, with the fewest clients "
    "measured."
)
"""How aims are judged."""

METHOD = (
    "Everything happens in network namespaces of its own: two nodes with pods, and an external "
    "client, joined by veth pairs and a bridge, with netfilter off in it: it stands for a network, "
    "which costs a node nothing. Each mode has a lab of its own, all of them exist at once, "
    "and the turns of a round go from one to the next, so that what else the machine does affects "
    "all alike. Client and server run on one core, which does the nodes' work on their packets, "
    "too, so that nothing waits for a core to wake up and a rate shows what the whole path costs; "
    "with --no-pin the kernel places them.",
    "On every node, in every mode, netfilter tracks connections and a CNI's rule masquerades what "
    "leaves the range of pods, as it is wherever a kubelet runs. Without that, direct would be "
    "some 15 % quicker, and all modes would look worse beside it, those of netfilter most.",
    "A UDP question is a first packet in every mode: each comes from another source port, and "
    "flows, which live for a second here, are forgotten before a port has its next turn. Usual are "
    "up to two minutes: an agent of bpfsvc, which checks all its entries every five seconds, would "
    "then check each some 24 times in place of once or twice.",
    "A round gives each mode one figure. A ratio is that figure divided by the reference's of "
    "the same round. Reported are the median of the rounds and the quartiles, which show whether "
    "a difference means anything.",
    "default is bpfsvc as it comes, without any flag. direct is the same client and the same "
    "backend without any load balancer. kube-proxy-nftables and kube-proxy-iptables are the real "
    "kube-proxy (with the legacy iptables, because iptables by nftables takes minutes for 10,000 "
    "Services); nftables, iptables, iptables-nft and ipvs are rules as kube-proxy writes them, "
    "recorded, for machines without it. The other modes of bpfsvc are named by what they change: "
    "tc is --socket-lb off (packets are translated, no sockets), stack is --fast-path off (packets "
    "take the node's network stack), stack-tc is both, established is --fast-path established (a "
    "connection begins and ends by the stack; requests keep theirs from turn to turn, so all but "
    "the first second of them is its middle), xdp is --xdp on the uplink. no-service and "
    "no-service-stack show what bpfsvc, as it comes and with --fast-path off, does to traffic to "
    "no Service: the client asks the backend's pod itself, at a port that is in no Service, on "
    "nodes with agents.",
    "CPU time is that of client, server and what the kernel does for them, divided by "
    "operations: it is steadier than a rate where other things run too. Agents and kube-proxy run "
    "on other cores, so that rates are without them. What agents do for connections, which is to "
    "check for those that are over until the last is removed, is measured apart, with the fewest "
    "clients, given in a table of its own, and added to the CPU time of an operation. It is that "
    "of threads that use twice as much then as when nothing happens, less what they use then. A "
    "run of less than ten minutes has no time for that, and says so. What a program costs is timed "
    "in test runs of packets that are proved to take the path they are said to take. "
    "Packets at the edge come as XDP frames from the other end of the wire: veth copies what a "
    "socket sends, which no real driver does.",
)
"""How it was measured, a paragraph each."""

COMMAND = "make bench ARGS='--markdown docs/benchmarks.md'"
"""How to repeat it, in a checkout of the repository, as root; with kube-proxy in PATH."""

_MITIGATIONS = "mitigations"
_PODS = {
    "routed": "pods: nodes have a route to the interface of each",
    "bridge": "pods: on a bridge of their node",
}
_PINNED = "pinned: client, server and the nodes' work on their packets share one CPU"
_NOT_PINNED = "not pinned: client and server run on any CPU, where the kernel places them"

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float, *, trim: bool = False) -> str:
    """Return three digits, with k, M or G: 12.3k; or ``trim`` zeros at their end."""
    text = "{:.3g}".format if trim else digits
    for size, sign in _STEPS:
        if abs(value) >= size * 0.9995:
            return text(value / size) + sign
    return text(value)


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


def signed(value: float) -> str:
    """Return a difference."""
    return f"+{digits(value)}" if value >= 0 else digits(value)


def span(values: tuple[float, ...]) -> str:
    """Return how far the quartiles lie from the median, in percent; at least one value."""
    spread = Spread.of(values)
    if len(values) < 2 or not spread.median:
        return ""
    half = (spread.three_quarters - spread.quarter) / 2 / spread.median
    return f"±{abs(half) * 100:.0f}%"


def measured(cell: Cell) -> str:
    """Return the median of a cell as its unit is read best."""
    return short(cell.median) if cell.more_is_better else digits(cell.median)


class AimRow(NamedTuple):
    """One aim, as it is printed; the verdict is a word, so that no colour is needed."""

    text: str
    goal: str
    measured: str
    quartiles: str
    verdict: str


def aim_row(aim: Aim) -> AimRow:
    """Return an aim in words."""
    unit = f" {aim.unit}" if aim.unit else ""
    number = digits if aim.unit else factor
    goal = f"{'≤' if aim.at_most else '≥'} {aim.goal:g}{unit}"
    if aim.measured is None:
        return AimRow(aim.text, goal, "", "", f"not measured: {aim.remark}")
    verdict = "reached" if aim.reached else "MISSED"
    return AimRow(
        aim.text,
        goal,
        f"{number(aim.measured)}{unit}",
        " to ".join(map(number, aim.quartiles or ())),
        f"{verdict} ({aim.remark})" if aim.remark else verdict,
    )


def setting(results: Results) -> list[str]:
    """Return on what, how, when and how long it was measured."""
    known = {key: value for key, value in results.machine.items() if key != _MITIGATIONS}
    machine = ", ".join(f"{key} {value}" for key, value in known.items())
    found = [machine or "machine unknown"]
    if _MITIGATIONS in results.machine:
        found.append(f"mitigations of CPU faults: {results.machine[_MITIGATIONS]}")
    if "pods" in results.scale:
        found.append(_PODS[results.scale["pods"]])
    if "pin" in results.scale:
        found.append(_PINNED if results.scale["pin"] else _NOT_PINNED)
    took = f"took {duration_text(results.seconds)}"
    if results.date:
        took = f"{results.date}, {took}"
    if rounds := results.scale.get("rounds"):
        took += f", {rounds} rounds"
    if results.quick:
        took += "; a quick run: fewer rounds and sizes, more spread"
    return [*found, took]


def remarks(results: Results) -> list[str]:
    """Return the notes of the run, and a warning for each suite whose reference varies."""
    found = list(results.notes)
    for suite in dict.fromkeys(cell.suite for cell in results.cells):
        warning = noisy(results.find(suite=suite, mode="direct"))
        if warning and warning not in found:
            found.append(warning)
    return found
