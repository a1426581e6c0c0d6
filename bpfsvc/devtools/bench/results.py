"""What a benchmark has measured: the one value between the suites and the reports.

A cell is one thing measured, several rounds long. What each suite calls its cells, so that aims,
tables and plots find them (other names are shown as they are, in tables)::

    suite     kind                                 mode                        unit
    pods      connect request datagrams questions  default direct ... (modes)  per second
              bulk (where: pod, node)              the same                    bytes per second
    edge      connect request datagrams            the same                    per second
              (where: remote, local)
    agents    connect questions (CPU time of the   default kube-proxy-... tc   µs
              agents per operation;
              where: as in pods and edge)
    frames    datagrams, others (CPU time of one   drop (receive and drop),    ns
              packet; where: remote, local)        default iptables ... xdp
    programs  established ..., others              empty (an empty program),   ns
                                                   default xdp
    change    change (each value one change;       default iptables ...        ms
              where: an API server, files, tool)
    start     any sentence ("until healthy, cold") the same                    s
    memory    any sentence ("agent, RSS")          the same                    MB

Of a rate more is better; of anything else, less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import msgspec

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.figures import Spread, clients_text, percentile, services_text
from bpfsvc.devtools.bench.modes import MODES

FLOORS = {"frames": "drop", "programs": "empty"}
"""By suite, the mode that does nothing, above which others are measured."""

_FORMAT = "bpfsvc bench 2"
_NOISE = 0.05  # of the median, between the quartiles


class NoResults(BpfsvcError):
    """A text is not what a benchmark wrote."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured thing.

    * ``services``: size of the cluster, 0 where it does not matter. ``clients``: at once.
    * ``where``: pod or node that asks; remote or local backend of a NodePort.
    * ``values``: one per round, in ``unit``. A round that a mode did not finish ends its values:
      the n-th values of two cells of a suite, kind and size always belong together.
    * ``ratios``: of values to those of the mode ``reference`` in the same round.
    * ``cpu``: microseconds of CPU time per operation, one per round; what the suite ``agents``
      reports for the same is a part of it.
    * ``latency``: microseconds, by percentile as text: 50, 90, 99, 99.9.
    * ``histogram``: upper edge of a bucket in microseconds, and how many were in it, ascending.
    """

    suite: str
    kind: str
    mode: str
    services: int
    unit: str
    values: tuple[float, ...]
    where: str = ""
    clients: int = 1
    ratios: tuple[float, ...] = ()
    reference: str = ""
    cpu: tuple[float, ...] = ()
    latency: Mapping[str, float] = field(default_factory=dict, hash=False)
    histogram: tuple[tuple[float, int], ...] = ()

    @property
    def more_is_better(self) -> bool:
        """True if it is a rate."""
        return self.unit.endswith("per second")

    @property
    def median(self) -> float:
        """The median of the values; there must be one."""
        return self.spread.median

    @property
    def spread(self) -> Spread:
        """Median, quartiles and ends of the values; there must be one."""
        return Spread.of(self.values)

    @property
    def ratio(self) -> float | None:
        """The median ratio to the reference, if there is one."""
        return Spread.of(self.ratios).median if self.ratios else None

    @property
    def moves(self) -> float:
        """The distance of the quartiles, as a part of the median."""
        spread = self.spread
        return (spread.three_quarters - spread.quarter) / spread.median if spread.median else 0.0

    def tail(self, percent: float) -> float:
        """Return the percentile of the values; there must be one."""
        return percentile(self.values, percent)


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything of one run.

    * ``machine``: what it was measured on. ``date``: when (2026-11-22). ``scale``: how much was to
      be measured, ``suites`` too.
    * ``notes``: what was left out and why, and what to be careful with.
    * ``seconds``: how long the run took. ``quick``: whether it was a short one.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    scale: dict[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    quick: bool = False

    def find(self, **wanted: object) -> list[Cell]:
        """Return the cells whose fields are as wanted, in the order they were measured."""
        return [
            cell
            for cell in self.cells
            if all(getattr(cell, name) == value for name, value in wanted.items())
        ]

    def one(self, **wanted: object) -> Cell | None:
        """Return the first such cell that has values."""
        return next((cell for cell in self.find(**wanted) if cell.values), None)

    def beside(self, cell: Cell, mode: str) -> Cell | None:
        """Return what a mode did where ``cell`` was measured, or with whatever size, if it did."""
        alike = [
            other
            for other in self.cells
            if other.mode == mode
            and other.kind == cell.kind
            and other.suite == cell.suite
            and other.where == cell.where
            and other.clients == cell.clients
            and other.services in (cell.services, 0)
            and other.values
        ]
        return next((one for one in alike if one.services == cell.services), None) or next(
            iter(alike), None
        )

    def wanted(self, what: str, value: object) -> bool | None:
        """True if a value is among those of the scale; None if the scale does not say."""
        named = self.scale.get(what)
        return value in named if isinstance(named, list | tuple) else None

    def to_json(self) -> str:
        """Return everything as a document; fields of cells with default values are left out."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        document["cells"] = [_without_defaults(cell) for cell in self.cells]
        return json.dumps({"format": _FORMAT, **document}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Results:
        """Read what ``to_json`` returned. Raises NoResults for anything else."""
        try:
            document = msgspec.json.decode(text)
            if not isinstance(document, dict) or document.pop("format", None) != _FORMAT:
                raise _no_results(f"its format is not {_FORMAT!r}")
            results = msgspec.convert(document, cls)
        except (msgspec.DecodeError, RecursionError) as cause:
            raise _no_results(str(cause)) from cause
        _expect_known(document, cls, "the document")
        for number, cell in enumerate(document.get("cells", ())):
            _expect_known(cell, Cell, f"cell {number}")
        return results


def ratios(cell: Cell, against: Cell) -> tuple[float, ...]:
    """Divide round by round, as far as both went; rounds in which the other has 0 are left out."""
    pairs = zip(cell.values, against.values, strict=False)
    return tuple(mine / other for mine, other in pairs if other)


def rank(mode: str) -> tuple[int, str]:
    """Return a key to sort modes by: floors, their order in reports, unknown ones by name.

    Lines of one mode may differ in what follows a blank.
    """
    first = mode.partition(" ")[0]
    if first in FLOORS.values():
        return (-1, mode)
    return (MODES.index(first) if first in MODES else len(MODES), mode)


def noisy(direct: Sequence[Cell]) -> str:
    """Return a warning if the reference itself varies too much to believe small differences.

    ``direct``: cells of the reference. An empty text when all are quiet.
    """
    restless = [cell for cell in direct if len(cell.values) > 1 and cell.moves > _NOISE]
    if not restless:
        return ""
    worst = max(restless, key=lambda cell: cell.moves)
    return (
        f"noise: {worst.mode} itself moved by more than {_NOISE:.0%} between its quartiles in "
        f"{len(restless)} of {len(direct)} cases, at most by {worst.moves:.0%} ({worst.kind}, "
        f"{services_text(worst.services)}, {clients_text(worst.clients)}): "
        "do not trust small differences"
    )


def _without_defaults(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(cell):
        value = getattr(cell, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value != default:
            found[each.name] = value
    return found


def _expect_known(found: dict[str, Any], kind: type[Cell | Results], name: str) -> None:
    if unknown := found.keys() - {each.name for each in fields(kind)}:
        raise _no_results(f"{name} has unknown fields: {', '.join(sorted(unknown))}")


def _no_results(why: str) -> NoResults:
    return NoResults(
        f"these are no results of a benchmark: {why}", "give a file that bench --json wrote"
    )
