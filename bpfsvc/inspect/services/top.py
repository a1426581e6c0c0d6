"""The busiest service ports, for ``bpfsvc top``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from textwrap import wrap
from typing import NamedTuple

from bpfsvc.inspect.services.facts import ACTIVE, INACTIVE, READY, ServicePortFacts
from bpfsvc.inspect.services.traffic import Amounts, Failed, Refused
from bpfsvc.inspect.services.view import RATES, View, connection_texts, in_order, number_text, title
from bpfsvc.inspect.tables import GAP, line_pattern

_WIDTH = 100
"""Characters of the longest line."""

_COLUMNS = ("SERVICE", *RATES, "ACTIVE", "INACTIVE", "BACKENDS")


class Busy(NamedTuple):
    """One service port, and its traffic per second; ``active``, ``inactive``: its connections."""

    title: str
    port: ServicePortFacts
    rates: Amounts
    refused: Refused
    failed: Failed
    active: int
    inactive: int


ORDERS: dict[str, Callable[[Busy], tuple[float, ...]]] = {
    "rate": lambda busy: (busy.rates.connections, _packets(busy), busy.active + busy.inactive),
    "connections": lambda busy: (busy.active + busy.inactive, busy.active, busy.rates.connections),
    "packets": lambda busy: (_packets(busy), _bytes(busy), busy.rates.connections),
    "bytes": lambda busy: (_bytes(busy), _packets(busy), busy.rates.connections),
    "errors": lambda busy: (sum(busy.failed) + sum(busy.refused), busy.rates.connections),
}
"""Name -> compared numbers; the largest comes first."""


def _packets(busy: Busy) -> float:
    return busy.rates.packets + busy.rates.reply_packets


def _bytes(busy: Busy) -> float:
    return busy.rates.bytes + busy.rates.reply_bytes


def busiest(view: View, order: str) -> list[Busy]:
    """Return the service ports of a view with rates, the busiest first, equal ones by name."""
    by_name = sorted((_busy(view, port) for port in view.ports), key=lambda busy: busy.title)
    return sorted(by_name, key=ORDERS[order], reverse=True)


def _busy(view: View, port: ServicePortFacts) -> Busy:
    if view.traffic is None:
        raise ValueError("the view has no traffic")
    return Busy(
        *(title(port), port, view.traffic.of_port(port), view.traffic.refused_of(port)),
        *(view.traffic.failed_of(port), port.active, port.inactive),
    )


def top_lines(view: View, order: str, now: datetime) -> Iterator[str]:
    """Yield a summary, the names of the columns, and a line for each service port.

    No line is longer than 100 characters: where they would be, the numbers of a service port have a
    line of their own below its name.
    """
    rows = busiest(view, order)
    connections = sum(busy.rates.connections for busy in rows)
    packets, octets = sum(map(_packets, rows)), sum(map(_bytes, rows))
    failed = sum(sum(busy.failed) for busy in rows)
    parts = (
        f"{now:%H:%M:%S}",
        f"service ports {len(rows)}",
        f"active {sum(busy.active for busy in rows)}{_more(view, ACTIVE)}",
        f"inactive {sum(busy.inactive for busy in rows)}{_more(view, INACTIVE)}",
        f"connections/s {number_text(connections)}",
        f"failed/s {number_text(failed)}",
        f"packets/s {number_text(packets)}",
        f"bytes/s {number_text(octets)}",
    )
    yield from _folded(parts, GAP)
    yield from wrap(view.note, _WIDTH)
    yield ""
    yield from _table([_COLUMNS, *map(_cells, rows)])


def _table(table: list[tuple[str, ...]]) -> Iterator[str]:
    pattern = line_pattern(table, [column > 0 for column in range(len(_COLUMNS))])
    lines = [pattern.format(*cells) for cells in table]
    if all(len(line.rstrip()) <= _WIDTH for line in lines):
        yield from lines
        return
    numbers = line_pattern([cells[1:] for cells in table], [True] * (len(_COLUMNS) - 1))
    for title_cell, *cells in table:
        yield title_cell
        yield GAP + numbers.format(*cells)


def _folded(parts: Iterable[str], gap: str) -> Iterator[str]:
    """Yield the parts in lines, as many in each as there is room for."""
    line = ""
    for part in parts:
        longer = f"{line}{gap}{part}" if line else part
        if line and len(longer) > _WIDTH:
            yield line
            longer = f"{gap}{part}"
        line = longer
    yield line


def _cells(busy: Busy) -> tuple[str, ...]:
    rates = (*in_order(busy.rates), *busy.refused, sum(busy.failed))
    shown = connection_texts(busy.port, busy.active, busy.inactive)
    ready = sum(backend.state == READY for backend in busy.port.backends)
    return (busy.title, *map(number_text, rates), *shown, str(ready))


def _more(view: View, name: str) -> str:
    """Return "+" if a sum leaves out some connections."""
    return "+" if any(name in port.partial for port in view.ports) else ""
