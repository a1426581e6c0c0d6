"""Helpers for tests of dumps: entries put into maps, and the records made of them."""

from __future__ import annotations

from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.records import Records, Value
from tests.inspect.pinned import Maps, place

SECOND = 1_000_000_000
NOW = 1000 * SECOND

CLIENT, VIP, BACKEND, NODE = (
    "10.244.1.5:40000",
    "10.96.0.10:80",
    "10.244.2.7:8080",
    "10.0.0.1:20000",
)

OPEN = {"replied": 1, "established": 1}
"""The state of an established connection's entries."""


def records(dumped: Records) -> list[dict[str, Value]]:
    return [dict(zip(dumped.columns, row, strict=True)) for row in dumped.rows]


def shown(maps: Maps, name: str) -> list[dict[str, Value]]:
    (dumped,) = dump(maps, [name])
    return records(dumped)


def policy(
    clients: str, first: int = 0, size: int = 0, masquerade: int = 0, reject: int = 0
) -> dict[str, int]:
    values = {"first": first, "size": size, "masquerade": masquerade, "reject": reject}
    return {f"{clients}.{name}": value for name, value in values.items()}


def frontend(text: str, protocol: int = 6) -> dict[str, int | bytes]:
    address, port = place(text)
    return {"address": address, "port": port, "protocol": protocol}


def web(maps: Maps) -> None:
    """A Service with two backends, 1 and 2 of generation 9."""
    maps.service(1, "web", "http")
    for slot, text in enumerate(("10.244.1.5:8080", BACKEND)):
        address, port = place(text)
        key = {"service": 1, "generation": 9, "slot": slot}
        maps.put("backends", key, {"address": address, "port": port, "counters": slot + 1})
