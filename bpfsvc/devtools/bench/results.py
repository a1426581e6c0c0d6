"""The results of a benchmark: the one value between the suites and the reports.

A cell is one thing measured, several rounds long. Each suite gives its cells these names, so that
aims, tables and plots find them (cells with other names are shown in tables)::

    suite     kind                                 mode                        unit
    pods      connect request datagrams questions  default direct ... (modes)  per second
              bulk (where: pod, node)              the same                    bytes per second
    edge      connect request datagrams            the same                    per second
              (where: remote, local)
    agents    connect questions (CPU time of the   default kube-proxy-... tc   µs
              agents per operation;
              where: as in pods and edge)
    change    change (each value one change;       default kube-proxy-...      ms
              where: an API server, files)
    start     any sentence ("until healthy, cold") the same                    s
    memory    any sentence ("agent, RSS")          the same                    MB

Of a rate more is better; of anything else, less is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.figures import Spread, clients_text, percentile, services_text
from bpfsvc.devtools.bench.modes import MODES

_FORMAT = "bpfsvc bench 2"
_NOISE = 0.05  # of the median, between the quartiles


class NoResults(BpfsvcError):
    """A text was not written by a benchmark."""


class Cell(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One measured thing.

    * ``services``: size of the cluster, 0 where the size does not matter. ``clients``: at once.
    * ``where``: pod or node that asks; remote or local backend of a NodePort.
    * ``values``: one per round, in ``unit``. A round that a mode did not finish ends its values:
      the n-th values of two cells of a suite, kind and size always belong together.
    * ``ratios``: of values to the values of the mode ``reference`` in the same round.
    * ``cpu``: microseconds of CPU time per operation, one per round; the figure of the suite
      ``agents`` for the same operation is a part of it.
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
    latency: dict[str, float] = {}
    histogram: tuple[tuple[float, int], ...] = ()

    @property
    def more_is_better(self) -> bool:
        """True if the cell is a rate."""
        return self.unit.endswith("per second")

    @property
    def spread(self) -> Spread:
        """Median, quartiles and ends of the values; there must be a value."""
        return Spread.of(self.values)

    @property
    def median(self) -> float:
        """The median of the values; there must be a value."""
        return self.spread.median

    @property
    def ratio(self) -> float | None:
        """The median ratio to the reference, if there is a reference."""
        return Spread.of(self.ratios).median if self.ratios else None

    def tail(self, percent: int) -> float:
        """Return the percentile of the values; there must be a value."""
        return percentile(self.values, percent)

    def having(self, **fields: Any) -> Cell:
        """Return the cell with other values of some fields."""
        return msgspec.structs.replace(self, **fields)


class Results(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag=_FORMAT,
):
    """All results of one run.

    * ``machine``: kernel, processor and so on. ``date``: of the run (2026-11-22). ``scale``: the
      plan of the run, with ``suites``.
    * ``notes``: omissions with their reasons, and warnings.
    * ``seconds``: how long the run took. ``quick``: whether it was a short one.
    """

    machine: dict[str, Any] = {}
    date: str = ""
    scale: dict[str, Any] = {}
    cells: list[Cell] = []
    notes: list[str] = []
    seconds: float = 0.0
    quick: bool = False

    def find(self, **wanted: object) -> list[Cell]:
        """Return the cells that have values and such fields, in the order of measurement."""
        return [
            cell
            for cell in self.cells
            if cell.values and all(getattr(cell, name) == value for name, value in wanted.items())
        ]

    def first(self, **wanted: object) -> Cell | None:
        """Return the first such cell."""
        return next(iter(self.find(**wanted)), None)

    def fewest_clients(self, **wanted: object) -> Cell | None:
        """Return such a cell with the fewest clients."""
        return min(self.find(**wanted), key=lambda cell: cell.clients, default=None)

    def beside(self, cell: Cell, mode: str) -> Cell | None:
        """Return the cell of a mode that was measured where ``cell`` was, if there is one."""
        fields = ("suite", "kind", "where", "clients", "services")
        return self.first(mode=mode, **{name: getattr(cell, name) for name in fields})

    def compared(self, cell: Cell, mode: str, *, cpu: bool = False) -> Spread | None:
        """Compare a cell with the cell of a mode beside it, by the ratios of their rounds."""
        other = self.beside(cell, mode)
        rounds = ratios(cell, other, cpu=cpu) if other else ()
        return Spread.of(rounds) if rounds else None

    def wanted(self, what: str, value: object) -> bool | None:
        """True if a value is among the values of the scale; None if the scale does not say."""
        named = self.scale.get(what)
        return value in named if isinstance(named, list | tuple) else None

    def to_json(self) -> str:
        """Return the whole as a document; fields of cells with default values are left out."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Results:
        """Read the text of ``to_json``. Raises NoResults for anything else."""
        try:
            document = msgspec.json.decode(text, type=dict[str, Any])
            if document.get("format") != _FORMAT:
                raise msgspec.ValidationError(f"the format is not {_FORMAT!r}")
            return msgspec.convert(document, cls)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NoResults(
                f"these are no results of a benchmark: {error}",
                "give a file that bench --json wrote",
            ) from error


def ratios(cell: Cell, against: Cell, *, cpu: bool = False) -> tuple[float, ...]:
    """Divide values (or CPU times) round by round, as far as both cells went.

    Rounds in which the other cell has 0 are left out.
    """
    mine, others = (cell.cpu, against.cpu) if cpu else (cell.values, against.values)
    return tuple(value / other for value, other in zip(mine, others, strict=False) if other)


def rank(mode: str) -> tuple[int, str]:
    """Return a key to sort modes by: their order in reports, unknown modes by name.

    Rows of one mode may differ after a blank.
    """
    first = mode.partition(" ")[0]
    return (MODES.index(first) if first in MODES else len(MODES), mode)


def noisy(direct: Sequence[Cell]) -> str:
    """Return a warning if the reference itself varies too much to believe small differences.

    ``direct``: cells of the reference. An empty text when all are quiet.
    """
    moves = [(cell.spread.width, cell) for cell in direct if len(cell.values) > 1]
    restless = [(width, cell) for width, cell in moves if width > _NOISE]
    if not restless:
        return ""
    width, worst = max(restless, key=lambda pair: pair[0])
    return (
        f"noise: {worst.mode} itself moved by more than {_NOISE:.0%} between its quartiles in "
        f"{len(restless)} of {len(direct)} cases, at most by {width:.0%} ({worst.kind}, "
        f"{services_text(worst.services)}, {clients_text(worst.clients)}): "
        "do not trust small differences"
    )
