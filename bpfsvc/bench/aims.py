"""What bpfsvc wants to reach, and whether it does: every aim is reported, reached or not.

An aim about two modes is judged by the median of the ratios of their rounds, as one cannot compare
rates of two moments on a machine that does other things too. With several numbers of clients
measured, the smallest counts: one client waits for every packet, many hide what a packet costs.
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
    * ``remark``: which mode it was where several may try, or why nothing was measured.
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
        missing = "no figures of bpfsvc"
        if not results.find(suite="change", services=10_000):
            missing = f"no cluster of {words.services(10_000)} in this run"
        yield replace(aim, remark=_no_suite(results, "change") or missing)
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
    """Judge the best of our modes by its median ratio."""
    aim = Aim(text=text, goal=goal)
    pairs = _pairs(results, duel)
    if not pairs:
        return replace(aim, remark=_why_not(results, duel))
    best, other = max(pairs, key=lambda pair: Spread.of(ratios(*pair)).median)
    return _measured(
        aim, ratios(best, other), (best, other), best.mode if len(duel.modes) > 1 else ""
    )


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
    if missing := _no_suite(results, duel.suite):
        return missing
    here = results.find(suite=duel.suite, services=duel.services)
    if not here:
        return f"no cluster of {words.services(duel.services)} in this run"
    measured = {cell.mode for cell in here if (cell.kind, cell.where) == (duel.kind, duel.where)}
    if not measured & set(duel.modes):
        return f"no figures of {' or '.join(duel.modes)}"
    return f"no figures of {duel.rival}"


def _no_suite(results: Results, suite: str) -> str:
    return "" if results.find(suite=suite) else f"the suite {suite} was not run"


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
