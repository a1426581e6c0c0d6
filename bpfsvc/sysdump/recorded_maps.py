"""The content of maps as JSON lines, and a reader of them: what reads pinned maps reads these, too.

Records are decoded by the layout of the build, so that addresses and names are texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from bpfsvc.base.address import pack, unpack
from bpfsvc.datapath.maps.layout import Layout, MapLayout, Record, Value
from bpfsvc.datapath.maps.tcp_sockets import NodeSocket
from bpfsvc.inspect.fields import chooser
from bpfsvc.inspect.reader import Reader

_ADDRESS, _ETHERNET = "16s", "6s"
_SECRET = frozenset({"port_secret"})
"""Fields that would tell how ports are chosen."""


def map_lines(reader: Reader, name: str) -> Iterator[str]:
    """Yield the entries of a map, one JSON object in each line."""
    layout = reader.layout.maps[name]
    key_of, value_of = _plainer(layout.key), _plainer(layout.value)
    is_array = layout.type.endswith("array")
    for key, value in reader.entries(name):
        # An array has all its entries from the start; nearly all are empty.
        if is_array and value.count(0) == len(value):
            continue
        parts = [value_of(part) for part in layout.cpu_values(value)]
        yield json.dumps({"map": name, "key": key_of(key), "values": parts}) + "\n"


class RecordedReader:
    """Reads recorded maps, as :class:`bpfsvc.inspect.reader.PinnedReader` does pinned ones."""

    def __init__(self, layout: Layout, entries: Iterable[dict[str, Any]]) -> None:
        """``entries``: those of :func:`map_lines`; ``KeyError`` and such for anything else."""
        self.layout = layout
        self._maps: dict[str, dict[bytes, bytes]] = {}
        for entry in entries:
            of_map = layout.maps[entry["map"]]
            key = _packed(of_map.key, entry["key"])
            self._maps.setdefault(entry["map"], {})[key] = _value(of_map, entry["values"])

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a map as key and value."""
        return iter(self._maps.get(name, {}).items())

    def value(self, name: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        return self._maps.get(name, {}).get(key)

    def count(self, name: str) -> int:
        """Return the number of entries of a map."""
        return len(self._maps.get(name, {}))

    def node_sockets(self) -> Collection[NodeSocket] | None:
        """Return None: sockets of the node are not recorded."""
        return None


def _plainer(record: Record) -> Callable[[bytes], dict[str, Any]]:
    """Return a function from the bytes of a record to its fields."""
    names = tuple(name for name in record.names if name not in _SECRET)
    choose, kinds = chooser(record, names), dict(record.fields)
    shown = [(name, kinds[name]) for name in names]

    def plain(data: bytes) -> dict[str, Any]:
        values = zip(shown, choose(data), strict=True)
        return {name: _plain_value(value, kind) for (name, kind), value in values}

    return plain


def _plain_value(value: Value, kind: str) -> Any:
    if isinstance(value, int | float):
        return value
    if kind == _ADDRESS:
        return unpack(value)
    if kind == _ETHERNET:
        return value.hex(":")
    text = value.rstrip(b"\0")
    if text and text.isascii() and text.decode().isprintable():
        return text.decode()
    return {"hex": text.hex()}


def _packed(record: Record, plain: dict[str, Any]) -> bytes:
    kinds = {name: kind for name, kind in record.fields if name}
    return record.pack({name: _packed_value(value, kinds[name]) for name, value in plain.items()})


def _packed_value(value: Any, kind: str) -> Value:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    if not isinstance(value, str):
        return int(value)
    if kind == _ADDRESS:
        return pack(value)
    return bytes.fromhex(value.replace(":", "")) if kind == _ETHERNET else value.encode()


def _value(layout: MapLayout, parts: list[dict[str, Any]]) -> bytes:
    packed = [_packed(layout.value, part) for part in parts] or [bytes(layout.value.size)]
    if not layout.type.startswith("percpu"):
        return packed[0]
    return b"".join(value + bytes(-len(value) % 8) for value in packed)
