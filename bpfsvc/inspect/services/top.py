"""The busiest service ports, for ``bpfsvc top``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from bpfsvc.inspect.services.facts import ACTIVE, INACTIVE, READY, ServicePortFacts
from bpfsvc.inspect.services.traffic import Amounts, Refused
from bpfsvc.inspect.services.view import RATES, View, connection_texts, in_order, number_text, title

_GAP = "  "
_COLUMNS = ("SERVICE", *RATES, "ACTIVE", "INACTIVE", "BACKENDS")


class Busy(NamedTuple):
    """One service port, and what it does in a second.

    * ``active``, ``inactive``: connections that are known; ``shown``: both as texts.
    * ``backends``: those that are ready.
    """

    title: str
    rates: Amounts
    refused: Refused
    active: int
    inactive: int
    shown: tuple[str, str]
    backends: int


ORDERS: dict[str, Callable[[Busy], tuple[float, ...]]] = {
    "rate": lambda one: (one.rates.connections, _packets(one), one.active + one.inactive),
    "connections": lambda one: (one.active + one.inactive, one.active, one.rates.connections),
    "packets": lambda one: (_packets(one), _bytes(one), one.rates.connections),
    "bytes": lambda one: (_bytes(one), _packets(one), one.rates.connections),
    "errors": lambda one: (sum(one.refused), one.rates.connections),
}
"""Name -> what is compared; the largest comes first."""


def _packets(one: Busy) -> float:
    return one.rates.packets + one.rates.reply_packets


def _bytes(one: Busy) -> float:
    return one.rates.bytes + one.rates.reply_bytes


def busiest(view: View, order: str) -> list[Busy]:
    """Return the service ports of a view with rates, the busiest first, equals by their names."""
    found = sorted((_busy(view, port) for port in view.ports), key=lambda one: one.title)
    return sorted(found, key=ORDERS[order], reverse=True)


def _busy(view: View, port: ServicePortFacts) -> Busy:
    if view.traffic is None:
        raise ValueError("the view has no traffic")
    return Busy(
        title(port),
        view.traffic.of_port(port),
        view.traffic.refused_of(port),
        port.active,
        port.inactive,
        connection_texts(port, port.active, port.inactive),
        sum(one.state == READY for one in port.backends),
    )


def top_lines(view: View, order: str, now: datetime) -> Iterator[str]:
    """Yield a summary, the names of the columns, and a line for each service port."""
    rows = busiest(view, order)
    connections = sum(one.rates.connections for one in rows)
    packets, octets = sum(map(_packets, rows)), sum(map(_bytes, rows))
    yield (
        f"{now:%H:%M:%S}  service ports {len(rows)}"
        f"  active {sum(one.active for one in rows)}{_more(view, ACTIVE)}"
        f"  inactive {sum(one.inactive for one in rows)}{_more(view, INACTIVE)}"
        f"  connections/s {number_text(connections)}"
        f"  packets/s {number_text(packets)}  bytes/s {number_text(octets)}"
    )
    if view.note:
        yield view.note
    yield ""
    table = [_COLUMNS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    pattern = _GAP.join(f"{{:{'>' if at else '<'}{width}}}" for at, width in enumerate(widths))
    for each in table:
        yield pattern.format(*each)


def _cells(one: Busy) -> tuple[str, ...]:
    rates = (*in_order(one.rates), *one.refused)
    return (one.title, *map(number_text, rates), *one.shown, str(one.backends))


def _more(view: View, name: str) -> str:
    """Return "+" if a sum leaves out some connections."""
    return "+" if any(name in port.partial for port in view.ports) else ""
