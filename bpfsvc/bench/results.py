"""What a benchmark has measured: the one value between those who measure and those who report.

A cell is one thing measured, several rounds long. What each suite calls its cells, so that aims,
tables and plots find them (names that are not here are shown as they come, in tables)::

    suite     kind                                 mode                        unit
    pods      connect request datagrams questions  direct iptables ... xdp     per second
              bulk (where: pod, node)              the same                    bytes per second
    edge      connect request datagrams            the same                    per second
              (where: remote, local)
    agents    connect questions (CPU time of an    kube-proxy tc socket ...    µs
              operation that is not on its way;
              where: as in pods and edge)
    frames    datagrams, others (CPU time of one   drop (receive and drop),    ns
              packet; where: remote, local)        iptables ... tc xdp
    programs  established ..., others              empty (an empty program),   ns
                                                   tc socket fast xdp
    change    change (each value one change;       tc (an agent), iptables ... ms
              where: who tells of it)
    start     any sentence ("until healthy, cold") the same                    s
    memory    any sentence ("agent, RSS")          the same                    MB

Of a rate more is better; of anything else, less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from bpfsvc.bench import words
from bpfsvc.bench.figures import Spread, percentile
from bpfsvc.errors import BpfsvcError

MODES = (
    "direct",
    "iptables",
    "iptables-nft",
    "nftables",
    "ipvs",
    "kube-proxy",
    "tc",
    "socket",
    "fast",
    "xdp",
)
"""Ways to a backend, in the order of every report."""
OURS = frozenset({"tc", "socket", "fast", "xdp"})
RIVALS = frozenset({"iptables", "iptables-nft", "nftables", "ipvs", "kube-proxy"})
FLOORS = {"frames": "drop", "programs": "empty"}
"""By suite, the mode that does nothing, which is what others are measured above."""

_FORMAT = "bpfsvc bench 1"
_NOISE = 0.05  # of the median, between the quartiles


class NoResults(BpfsvcError):
    """A text is not what a benchmark wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measured thing.

    * ``services``: size of the cluster, 0 where it does not matter. ``clients``: at once.
    * ``where``: pod or node that asks; remote or local backend of a node port.
    * ``values``: one per round, in ``unit``. A round that a mode did not finish ends its values:
      the n-th values of two cells of a suite, kind and size always belong together.
    * ``ratios``: of values to those of the mode ``reference`` in the same round.
    * ``cpu``: microseconds of CPU time per operation, one per round (as many CPU seconds a
      million operations); what the suite ``agents`` tells of the same is a part of it.
    * ``latency``: microseconds, by percentile as text: 50, 90, 99, 99.9.
    * ``histogram``: upper edge of a bucket in microseconds, and how many were in it, ascending.
    """

    suite: str
    kind: str
    mode: str
    services: int
    clients: int = 1
    where: str = ""
    unit: str
    values: tuple[float, ...]
    ratios: tuple[float, ...] = ()
    reference: str = ""
    cpu: tuple[float, ...] = ()
    latency: Mapping[str, float] = field(default_factory=dict, hash=False)
    histogram: tuple[tuple[float, int], ...] = ()

    @property
    def more_is_better(self) -> bool:
        """Whether it is a rate."""
        return self.unit.endswith("per second")

    @property
    def median(self) -> float:
        """Give the median of the values; there must be one."""
        return self.spread.median

    @property
    def spread(self) -> Spread:
        """Give median, quartiles and ends of the values; there must be one."""
        return Spread.of(self.values)

    @property
    def ratio(self) -> float | None:
        """Give the median ratio to the reference, if there is one."""
        return Spread.of(self.ratios).median if self.ratios else None

    @property
    def moves(self) -> float:
        """Give the distance of the quartiles, as a part of the median."""
        spread = self.spread
        if not spread.median:
            return 0.0
        return (spread.three_quarters - spread.quarter) / spread.median


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything of one run.

    * ``machine``: what it was measured on. ``scale``: how much was to be measured, ``suites`` too.
    * ``notes``: what was left out and why, and what to be careful with.
    * ``seconds``: how long the run took. ``quick``: whether it was a short one.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    quick: bool = False

    def find(self, **wanted: object) -> list[Cell]:
        """Give the cells whose fields are as wanted, in the order they were measured."""
        return [
            cell
            for cell in self.cells
            if all(getattr(cell, name) == value for name, value in wanted.items())
        ]

    def one(self, **wanted: object) -> Cell | None:
        """Give the first such cell that has values."""
        return next((cell for cell in self.find(**wanted) if cell.values), None)

    def beside(self, cell: Cell, mode: str) -> Cell | None:
        """Give what a mode did where ``cell`` was measured, or with whatever size, if it did."""
        any_size = None
        for other in self.cells:
            if (
                other.mode == mode
                and other.kind == cell.kind
                and other.suite == cell.suite
                and other.where == cell.where
                and other.clients == cell.clients
                and other.values
            ):
                if other.services == cell.services:
                    return other
                if not other.services and any_size is None:
                    any_size = other
        return any_size

    def wanted(self, what: str, value: object) -> bool | None:
        """Say whether a value is among those of the scale; None if that does not tell."""
        named = self.scale.get(what)
        return value in named if isinstance(named, list | tuple) else None

    def to_json(self) -> str:
        """Give everything as a document, fields with usual values left out of cells."""
        return json.dumps(
            {
                "format": _FORMAT,
                "machine": self.machine,
                "scale": self.scale,
                "quick": self.quick,
                "seconds": self.seconds,
                "notes": self.notes,
                "cells": [_told(cell) for cell in self.cells],
            },
            indent=1,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Results:
        """Read what ``to_json`` gave. Raises NoResults for anything else."""
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise _no_results(f"no JSON: {cause}") from cause
        if not isinstance(read, dict) or read.get("format") != _FORMAT:
            raise _no_results(f"it does not say that its format is {_FORMAT!r}")
        kinds: dict[str, type | tuple[type, ...]] = {
            "machine": dict,
            "scale": dict,
            "quick": bool,
            "seconds": (int, float),
            "notes": list,
            "cells": list,
        }
        if read.keys() - {"format"} != kinds.keys():
            raise _no_results(f"fields other than {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(read[name], kind):
                raise _no_results(f"{name} is {read[name]!r:.40}")
        if not _number(read["seconds"]):
            raise _no_results(f"seconds is {read['seconds']!r:.40}")
        if not all(isinstance(note, str) for note in read["notes"]):
            raise _no_results("a note is not a text")
        return cls(
            machine=read["machine"],
            scale=read["scale"],
            cells=[_cell(number, told) for number, told in enumerate(read["cells"])],
            notes=read["notes"],
            seconds=float(read["seconds"]),
            quick=read["quick"],
        )


def ratios(cell: Cell, against: Cell) -> tuple[float, ...]:
    """Divide round by round, as far as both went; rounds in which the other has none are out."""
    pairs = zip(cell.values, against.values, strict=False)
    return tuple(mine / other for mine, other in pairs if other)


def rank(mode: str) -> tuple[int, str]:
    """Give what to sort modes by: floors, their order in reports, unknown ones by name.

    What follows a mode after a blank tells lines of one mode apart.
    """
    first = mode.partition(" ")[0]
    if first in FLOORS.values():
        return (-1, mode)
    return (MODES.index(first) if first in MODES else len(MODES), mode)


def noisy(direct: Sequence[Cell]) -> str:
    """Warn when the case that nobody changed moves too much to believe small differences.

    ``direct``: cells of the reference. An empty text when all are quiet.
    """
    restless = [cell for cell in direct if len(cell.values) > 1 and cell.moves > _NOISE]
    if not restless:
        return ""
    worst = max(restless, key=lambda cell: cell.moves)
    return (
        f"noise: {worst.mode} itself moved by more than {_NOISE:.0%} between its quartiles in "
        f"{len(restless)} of {len(direct)} cases, at most by {worst.moves:.0%} ({worst.kind}, "
        f"{words.services(worst.services)}, {words.clients(worst.clients)}): "
        "do not trust small differences"
    )


def tail(cell: Cell, percent: float) -> float:
    """Give the percentile of the values; there must be one."""
    return percentile(cell.values, percent)


def _told(cell: Cell) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for each in fields(cell):
        value = getattr(cell, each.name)
        usual = each.default_factory() if each.default_factory is not MISSING else each.default
        if value != usual:
            told[each.name] = dict(value) if each.name == "latency" else value
    return told


def _cell(number: int, told: object) -> Cell:
    if not isinstance(told, dict):
        raise _no_results(f"cell {number} is {told!r:.40}")
    known = {each.name: each for each in fields(Cell)}
    for name in told.keys() - known.keys():
        raise _no_results(f"cell {number} has a field {name!r}")
    read: dict[str, Any] = {}
    for name, each in known.items():
        if name in told:
            read[name] = _field(number, name, told[name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _no_results(f"cell {number} has no {name}")
    return Cell(**read)


def _field(number: int, name: str, value: object) -> object:
    """Take a field of a cell, as what it must be."""
    match name, value:
        case (("services" | "clients"), int()) if not isinstance(value, bool):
            return value
        case (("suite" | "kind" | "mode" | "where" | "unit" | "reference"), str()):
            return value
        case (("values" | "ratios" | "cpu"), list()) if all(map(_number, value)):
            return tuple(map(float, value))
        case "latency", dict() if all(map(_number, value.values())):
            return {key: float(each) for key, each in value.items()}
        case "histogram", list() if all(map(_bucket, value)):
            return tuple((float(edge), count) for edge, count in value)
    raise _no_results(f"{name} of cell {number} is {value!r:.40}")


def _number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < 1e300  # also false for what is no number


def _bucket(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _number(value[0])
        and isinstance(value[1], int)
        and not isinstance(value[1], bool)
        and value[1] > 0
    )


def _no_results(why: str) -> NoResults:
    return NoResults(
        f"these are no results of a benchmark: {why}", "give a file that bench --json wrote"
    )
