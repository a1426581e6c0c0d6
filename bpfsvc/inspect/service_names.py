"""Service ids as people know them."""

from __future__ import annotations

from bpfsvc.inspect.fields import chooser, lacks, text
from bpfsvc.inspect.reader import Reader

_KEY, _FIELDS = ("value",), ("namespace", "name", "port_name", "number")


class ServiceNames:
    """Service ids as ``namespace/name:port``; the port's number where it has no name."""

    def __init__(self, reader: Reader) -> None:
        self._names: dict[int, str] = {}
        layout = reader.layout.maps.get("services")
        if layout is None or lacks(layout.key, _KEY) or lacks(layout.value, _FIELDS):
            return
        key, value = chooser(layout.key, _KEY), chooser(layout.value, _FIELDS)
        for raw_key, raw in reader.entries("services"):
            namespace, name, port_name, number = value(raw)
            port = text(port_name) or number
            self._names[key(raw_key)[0]] = f"{text(namespace)}/{text(name)}:{port}"

    def __getitem__(self, service: int) -> str:
        """Return the name; ``#7`` for an id that has none, "" for 0."""
        return self._names.get(service) or (f"#{service}" if service else "")
