"""What bpfsvc wants to reach, and whether it does: every aim is reported, reached or not.

An aim about two modes is judged by the median of the ratios of their rounds, as one cannot compare
rates of two moments on a machine that does other things too. With several numbers of clients
measured, the smallest counts: one client waits for every packet, many hide what a packet costs.

Where the best of several modes is to be judged, no round judges a mode that it has helped to choose
(cross-validation): the mode that is best in the first, third, ... round is judged by the second,
fourth, ... and the other way round, and the median is that of all. The largest of three medians
would be too high by chance, 1 to 3 % with seven rounds of modes that are equal. If two modes are
about as good, each may be the best of one half; then both are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bpfsvc.bench import words
from bpfsvc.bench.figures import Spread
from bpfsvc.bench.results import FLOORS, OURS, Cell, Results, rank, ratios, tail

_SIZES = (1, 10_000)
_OURS = tuple(sorted(OURS, key=rank))
_EDGE = ("tc", "fast", "xdp")
_WAYS = (
    ("socket", "socket hook", 0.97),
    ("tc", "tc through the stack", 0.97),
    ("fast", "fast path", 1.15),
)
"""From pod to pod, and what connections are to reach of direct's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim, and what came of it.

    * ``goal``: at least this, or ``at_most``. ``unit`` is empty for ratios.
    * ``measured``: None if it was not; ``quartiles`` around it, of rounds.
    * ``remark``: which modes were chosen where several may try, or why nothing was measured.
    * ``cells``: what it was computed from.
    """

    text: str
    goal: float
    at_most: bool = False
    unit: str = ""
    measured: float | None = None
    quartiles: tuple[float, float] | None = None
    remark: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def reached(self) -> bool | None:
        """Whether it is; None if nothing was measured."""
        if self.measured is None:
            return None
        return self.measured <= self.goal if self.at_most else self.measured >= self.goal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duel:
    """Where a mode of several is compared with one other."""

    suite: str
    kind: str
    where: str
    services: int
    modes: tuple[str, ...]
    rival: str


def aims(results: Results) -> list[Aim]:
    """Give all of them, in the order they were set."""
    return [
        *_against_direct(results),
        *_against_rivals(results),
        *_requests(results),
        *_node_ports(results),
        *_frames(results),
        *_established(results),
        *_changes(results),
    ]


def _against_direct(results: Results) -> Iterable[Aim]:
    for mode, name, goal in _WAYS:
        for services in _SIZES:
            text = f"{name} against direct, connections, {words.services(services)}"
            yield _won(results, _pods("connect", services, (mode,), "direct"), text, goal)


def _against_rivals(results: Results) -> Iterable[Aim]:
    for rival in ("iptables", "iptables-nft", "nftables"):
        text = f"best path against {rival}, connections, {words.services(1)}"
        yield _won(results, _pods("connect", 1, _OURS, rival), text, 1.10)
    text = f"best path against iptables, connections, {words.services(10_000)}"
    yield _won(results, _pods("connect", 10_000, _OURS, "iptables"), text, 4.0)


def _requests(results: Results) -> Iterable[Aim]:
    for mode, name, _ in _WAYS:
        for services in _SIZES:
            text = f"{name} against direct, requests, {words.services(services)}"
            yield _won(results, _pods("request", services, (mode,), "direct"), text, 1.0)


def _node_ports(results: Results) -> Iterable[Aim]:
    for services in _ends(results.find(suite="edge", kind="connect", where="remote")):
        duel = _Duel(
            suite="edge",
            kind="connect",
            where="remote",
            services=services,
            modes=_EDGE,
            rival="iptables",
        )
        text = (
            f"NodePort, remote, best path against iptables, connections, {words.services(services)}"
        )
        yield _won(results, duel, text, 1.15)


def _frames(results: Results) -> Iterable[Aim]:
    """Compare what a packet costs beyond a packet that is received and dropped at once."""
    for services in _ends(results.find(suite="frames", kind="datagrams", where="remote")):
        duel = _Duel(
            suite="frames",
            kind="datagrams",
            where="remote",
            services=services,
            modes=("xdp",),
            rival="iptables",
        )
        aim = Aim(
            text="NodePort, remote, UDP: CPU time per packet above receive-and-drop, xdp against "
            f"iptables, {words.services(services)}",
            goal=0.33,
            at_most=True,
        )
        pairs = _pairs(results, duel)
        floor = results.beside(pairs[0][0], FLOORS["frames"]) if pairs else None
        if not pairs:
            yield replace(aim, remark=_why_not(results, duel))
        elif floor is None:
            yield replace(aim, remark="no figures of receive-and-drop")
        else:
            (xdp, iptables) = pairs[0]
            rounds = zip(xdp.values, iptables.values, floor.values, strict=False)
            found = [
                (mine - least) / (other - least) for mine, other, least in rounds if other > least
            ]
            if found:
                yield _measured(aim, found, (xdp, iptables, floor))
            else:
                yield replace(aim, remark="iptables cost no more than receive-and-drop")


def _established(results: Results) -> Iterable[Aim]:
    """Judge every program that established packets pass, at the largest size."""
    aim = Aim(
        text="established packet, program cost above an empty one",
        goal=100.0,
        at_most=True,
        unit="ns",
    )
    cells = [
        cell
        for cell in results.find(suite="programs")
        if cell.kind.startswith("established") and cell.mode in OURS and cell.values
    ]
    if not cells:
        yield replace(aim, remark=_no_suite(results, "programs") or "no figures of such a packet")
        return
    largest = max(cell.services for cell in cells)
    for cell in cells:
        if cell.services != largest:
            continue
        empty = results.beside(cell, FLOORS["programs"])
        each = replace(aim, text=f"{aim.text}: {_name(cell)}")
        if empty is None:
            yield replace(each, remark="no figures of an empty program")
        else:
            above = [a - b for a, b in zip(cell.values, empty.values, strict=False)]
            yield _measured(each, above, (cell, empty))


def _changes(results: Results) -> Iterable[Aim]:
    aim = Aim(
        text=f"{words.services(10_000)}: change to changed packets, 99 of 100 within",
        goal=10.0,
        at_most=True,
        unit="ms",
    )
    cells = [
        cell
        for cell in results.find(suite="change", services=10_000)
        if cell.mode in OURS and cell.values
    ]
    if not cells:
        missing = _no_cluster(results, "change", 10_000)
        yield replace(aim, remark=missing or "no figures of bpfsvc")
    for cell in cells:
        text = aim.text if len(cells) == 1 else f"{aim.text}: {_name(cell)}"
        yield replace(
            aim,
            text=text,
            measured=tail(cell, 99),
            cells=(cell,),
        )


def _pods(kind: str, services: int, modes: tuple[str, ...], rival: str) -> _Duel:
    return _Duel(suite="pods", kind=kind, where="pod", services=services, modes=modes, rival=rival)


def _won(results: Results, duel: _Duel, text: str, goal: float) -> Aim:
    """Judge the one mode, or the best of several, against the rival."""
    aim = Aim(text=text, goal=goal)
    pairs = _pairs(results, duel)
    if not pairs:
        return replace(aim, remark=_why_not(results, duel))
    if len(pairs) == 1:
        remark = pairs[0][0].mode if len(duel.modes) > 1 else ""
        return _measured(aim, ratios(*pairs[0]), pairs[0], remark)
    halves = {cell.mode: _halves(cell, other) for cell, other in pairs}
    able = [mode for mode, both in halves.items() if all(both)]
    if not able:
        return replace(aim, remark="one round cannot both choose a mode and judge it")
    odd, even = (
        max(able, key=lambda mode: Spread.of(halves[mode][half]).median) for half in (0, 1)
    )
    chosen = tuple(cell for cell, _ in pairs if cell.mode in (odd, even))
    return _measured(
        aim,
        [*halves[odd][1], *halves[even][0]],
        (*chosen, pairs[0][1]),
        " or ".join(cell.mode for cell in chosen),
    )


def _halves(cell: Cell, against: Cell) -> tuple[list[float], list[float]]:
    """Give the ratios of the first, third, ... round, and those of the others."""
    rounds = [*zip(cell.values, against.values, strict=False)]
    odd, even = (
        [mine / other for mine, other in half if other] for half in (rounds[0::2], rounds[1::2])
    )
    return odd, even


def _pairs(results: Results, duel: _Duel) -> list[tuple[Cell, Cell]]:
    """Find each of our modes and what it is compared with, at the fewest clients measured."""
    alike = {
        "suite": duel.suite,
        "kind": duel.kind,
        "where": duel.where,
        "services": duel.services,
    }
    cells = [cell for cell in results.find(**alike) if cell.mode in duel.modes and cell.values]
    fewest = min((cell.clients for cell in cells), default=0)
    found = []
    for cell in cells:
        other = results.beside(cell, duel.rival)
        if cell.clients == fewest and other and ratios(cell, other):
            found.append((cell, other))
    return found


def _why_not(results: Results, duel: _Duel) -> str:
    """Say what is missing for a comparison."""
    if missing := _no_cluster(results, duel.suite, duel.services):
        return missing
    here = results.find(suite=duel.suite, services=duel.services)
    measured = {
        cell.mode
        for cell in here
        if (cell.kind, cell.where) == (duel.kind, duel.where) and cell.values
    }
    if not measured & set(duel.modes):
        return f"no figures of {' or '.join(duel.modes)}"
    return f"no figures of {duel.rival}"


def _no_cluster(results: Results, suite: str, services: int) -> str:
    """Say why a suite has no figures at a size; an empty text if it has some."""
    if missing := _no_suite(results, suite):
        return missing
    if any(cell.values for cell in results.find(suite=suite, services=services)):
        return ""
    if results.wanted("services", services):
        return f"no figures of {words.services(services)}, see the notes"
    return f"no cluster of {words.services(services)} in this run"


def _no_suite(results: Results, suite: str) -> str:
    """Say why a suite has no figures; an empty text if it has some."""
    if any(cell.values for cell in results.find(suite=suite)):
        return ""
    match results.wanted("suites", suite):
        case True:
            return f"the suite {suite} has no figures, see the notes"
        case False:
            return f"the suite {suite} was not run"
        case None:
            return f"no figures of the suite {suite}"


def _ends(cells: Sequence[Cell]) -> list[int]:
    """Give the smallest and the largest size measured; the smallest there is if none was."""
    sizes = {cell.services for cell in cells}
    return sorted({min(sizes), max(sizes)}) if sizes else [_SIZES[0]]


def _measured(aim: Aim, values: Sequence[float], cells: tuple[Cell, ...], remark: str = "") -> Aim:
    spread = Spread.of(values)
    return replace(
        aim,
        measured=spread.median,
        quartiles=(spread.quarter, spread.three_quarters),
        remark=remark,
        cells=cells,
    )


def _name(cell: Cell) -> str:
    """Name a cell within an aim that names most of it."""
    kind = cell.kind.removeprefix("established").removeprefix(" packet").removeprefix("change")
    return ", ".join(filter(None, (cell.mode, cell.where, kind.strip(" ,"))))
