"""Service ports as text for people, in blocks as ``ipvsadm -ln`` prints them.

::

    SERVICE                     SCHEDULER  FLAGS
      FRONTEND                  FLAGS
      -> BACKEND                STATE      WEIGHT  HALF-OPEN  ACTIVE  INACTIVE  FAILED LATELY
    default/web:http TCP IPv4   random     affinity=10800s
      10.96.0.10:80/TCP
      -> 10.244.1.5:8080        ready           1          0       3         0  2 unanswered
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bpfsvc.inspect.policies import KEEP
from bpfsvc.inspect.services.facts import BackendFacts, ServicePortFacts
from bpfsvc.inspect.services.traffic import Traffic
from bpfsvc.inspect.services.view import (
    COLUMN_ORDER,
    CONNECT_SHARES,
    COUNTS,
    RATES,
    View,
    connect_texts,
    connection_texts,
    failed_text,
    in_order,
    number_text,
    title,
    words,
)
from bpfsvc.inspect.tables import GAP, line_pattern

_EMPTY = "-"
_ARROW = "  -> "
_SERVICE, _FRONTEND, _BACKEND, _SCHEDULER = "SERVICE", "  FRONTEND", f"{_ARROW}BACKEND", "SCHEDULER"

_CONNECTIONS = ("STATE", "WEIGHT", "HALF-OPEN", "ACTIVE", "INACTIVE", "FAILED LATELY")
_WIDE = ("LOCAL", "CLIENTS")
_TEXTS = {"STATE", "LOCAL", "CLIENTS", "FAILED LATELY"}
"""Columns that begin at the left."""

Line = tuple[str, tuple[str, ...]]
"""What comes first, and further cells."""

_UNCOUNTED = (_EMPTY,) * len(COLUMN_ORDER)


def write_view(view: View, *, wide: bool = False) -> Iterator[str]:
    """Yield a table in pieces, line ends included."""
    connections = _CONNECTIONS + (_WIDE if wide else ())
    if view.traffic is None:
        yield from _list(view, connections, wide=wide)
        names = connections
    else:
        counted = COUNTS if view.seconds is None else RATES
        names = (*counted, *CONNECT_SHARES, *(connections if wide else ()))
        yield from _numbers(view, view.traffic, names, wide=wide)
    if view.note and "ACTIVE" in names:
        yield f"\n{view.note}\n"


def _list(view: View, names: tuple[str, ...], *, wide: bool) -> Iterator[str]:
    """Yield for each service port its scheduler and flags, frontends, and backends."""
    blocks = [
        (
            port,
            [
                (_ARROW + backend.text, _connections(view, port, backend, wide=wide))
                for backend in port.backends
            ],
        )
        for port in view.ports
    ]
    cells = [names, *(cells for _, backends in blocks for _, cells in backends)]
    first = _first_width(view, frontends=True)
    second = max([len(_SCHEDULER), *(len(port.scheduler) for port in view.ports)])
    line = _pattern(cells, first, at_least=second)
    yield f"{_SERVICE:<{first}}{GAP}{_SCHEDULER:<{second}}{GAP}FLAGS\n"
    yield f"{_FRONTEND:<{first}}{GAP}FLAGS\n"
    yield line(_BACKEND, names)
    for port, backends in blocks:
        flags = " ".join(_flags(port, wide=wide))
        head = f"{title(port):<{first}}{GAP}{port.scheduler:<{second}}{GAP}{flags}"
        yield head.rstrip() + "\n"
        yield from _frontends(port, first)
        yield from (line(*cells) for cells in backends)


def _numbers(view: View, traffic: Traffic, names: tuple[str, ...], *, wide: bool) -> Iterator[str]:
    """Yield traffic: for each service port the sum, what was refused, and the backends."""
    blocks: list[tuple[ServicePortFacts, list[Line]]] = []
    for port in view.ports:
        failed = sum(traffic.failed_of(port))
        sums = (*in_order(traffic.of_port(port)), *traffic.refused_of(port), failed)
        more = connect_texts(traffic.connects_of(port))
        if wide:
            counts = connection_texts(port, port.active, port.inactive)
            more = (*more, "", "", str(port.half_open), *counts, "", "", "")
        lines: list[Line] = [(title(port), (*map(number_text, sums), *more))]
        for backend in port.backends:
            amounts = traffic.of_backend(port, backend)
            numbers = tuple(map(number_text, in_order(amounts))) if amounts else _UNCOUNTED
            more = connect_texts(traffic.connects_of_backend(port, backend))
            if wide:
                more = (*more, *_connections(view, port, backend, wide=True))
            failed = sum(traffic.failed_of_backend(port, backend))
            failed_cell = number_text(failed) if amounts else _EMPTY
            lines.append((_ARROW + backend.text, (*numbers, "", "", failed_cell, *more)))
        blocks.append((port, lines))
    cells = [names, *(cells for _, lines in blocks for _, cells in lines)]
    first = _first_width(view, frontends=wide)
    line = _pattern(cells, first)
    yield line(_SERVICE, names)
    if wide:
        yield f"{_FRONTEND:<{first}}{GAP}FLAGS\n"
    yield f"{_BACKEND}\n"
    for port, (head, *backends) in blocks:
        yield line(*head)
        if wide:
            yield from _frontends(port, first)
        yield from (line(*cells) for cells in backends)


def _flags(port: ServicePortFacts, *, wide: bool) -> Iterator[str]:
    if port.affinity_seconds:
        yield f"affinity={port.affinity_seconds}s"
    for name, text in port.said.items():
        if text not in ("", KEEP):
            yield f"{name.replace('_', '-')}={text}"
    if port.zone_overload:
        yield f"zone-overload={port.zone_overload}"
    if wide and port.source_ranges:
        yield f"source-ranges={','.join(port.source_ranges)}"


def _frontends(port: ServicePortFacts, width: int) -> Iterator[str]:
    for frontend in port.frontends:
        yield f"{'  ' + frontend.text:<{width}}{GAP}{' '.join(words(frontend))}".rstrip() + "\n"


def _connections(
    view: View, port: ServicePortFacts, backend: BackendFacts, *, wide: bool
) -> tuple[str, ...]:
    counts = connection_texts(port, backend.active, backend.inactive)
    failed = failed_text(view.failed_lately(backend))
    cells = (backend.state, str(backend.weight), str(backend.half_open), *counts, failed)
    if not wide:
        return cells
    local = _EMPTY if backend.local is None else "yes" if backend.local else "no"
    return (*cells, local, ",".join(backend.clients) or _EMPTY)


def _first_width(view: View, *, frontends: bool) -> int:
    widths = [len(_BACKEND)]
    for port in view.ports:
        widths.append(len(title(port)))
        widths += [len(_ARROW) + len(backend.text) for backend in port.backends]
        if frontends:
            widths += [2 + len(frontend.text) for frontend in port.frontends]
    return max(widths)


def _pattern(
    rows: Sequence[tuple[str, ...]], first: int, at_least: int = 0
) -> Callable[[str, tuple[str, ...]], str]:
    """Return the function that makes a line; ``rows`` are all that will come, the names first.

    ``at_least``: the width of the first of their cells.
    """
    least = (" " * at_least, *("",) * (len(rows[0]) - 1))
    pattern = line_pattern([*rows, least], [name not in _TEXTS for name in rows[0]])
    return lambda start, cells: f"{start:<{first}}{GAP}{pattern.format(*cells)}".rstrip() + "\n"
