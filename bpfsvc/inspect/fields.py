"""From bytes to values by field name, and from values to texts.

The codec of a record is made once, and values are plain tuples: reading a hundred thousand entries
takes about a second.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from bpfsvc.base.address import unpack
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.datapath.maps.layout import MapLayout, Record

Fields = tuple[Any, ...]
"""Values of chosen fields: ``int`` or ``bytes``, ports in host order."""

_PADDING = "zero"
"""The last part of the name of every padding field of the C structs."""


def names(record: Record) -> tuple[str, ...]:
    """Return the fields of a record without padding."""
    return tuple(name for name in record.names if name.rpartition(".")[2] != _PADDING)


def lacks(record: Record, wanted: Iterable[str]) -> bool:
    """True if a record of another version does not have all fields ``wanted``."""
    return not set(wanted) <= set(record.names)


def chooser(record: Record, wanted: Iterable[str]) -> Callable[[bytes], Fields]:
    """Return a function from bytes to the values of the fields ``wanted``, in that order."""
    order = record.names
    formats = {name: kind for name, kind in record.fields if name}
    at = [order.index(name) for name in wanted]
    ports = [
        position
        for position, index in enumerate(at)
        if formats[order[index]] == "H" and order[index].endswith("port")
    ]
    unpack_from = record.codec.unpack_from

    def choose(data: bytes) -> Fields:
        values = unpack_from(data)
        chosen = [values[index] for index in at]
        for position in ports:
            chosen[position] = socket.ntohs(chosen[position])
        return tuple(chosen)

    return choose


def total(layout: MapLayout, wanted: Iterable[str]) -> Callable[[bytes], list[int]]:
    """Return a function from a per-CPU value to the sums of the fields ``wanted``."""
    fields = tuple(wanted)
    choose = chooser(layout.value, fields)

    def add(value: bytes) -> list[int]:
        sums = [0] * len(fields)
        for part in layout.cpu_values(value):
            if any(part):
                sums = [a + b for a, b in zip(sums, choose(part), strict=True)]
        return sums

    return add


def text(field: bytes) -> str:
    """Return the text before the first zero byte."""
    return field.partition(b"\0")[0].decode(errors="replace")


def address_text(address: bytes) -> str:
    """Return an address as text, "" for an address that is all zero."""
    return unpack(address) if any(address) else ""


def protocol_text(number: int) -> str:
    """Return ``TCP``; a number without a name stays a number."""
    return PROTOCOL_NAMES.get(number, str(number))


def interface_text(index: int) -> str:
    """Return the name of an interface of this network namespace, or its number."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return f"#{index}"
