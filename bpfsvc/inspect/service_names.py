"""Service ids as people know them."""

from __future__ import annotations

from bpfsvc.base.errors import KernelError
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.plans.registry import SERVICES


class ServiceNames:
    """Service ids as ``namespace/name:port``; the port's number where it has no name."""

    def __init__(self, reader: Reader) -> None:
        self._names: dict[int, str] = {}
        try:
            entries = EntryReader(reader).read(SERVICES)
        except KernelError:
            return  # another build's: ids stay numbers
        for service, port, number in entries:
            self._names[service] = f"{port.namespace}/{port.name}:{port.port_name or number}"

    def __getitem__(self, service: int) -> str:
        """Return the name; ``#7`` for an id that has none, "" for 0."""
        return self._names.get(service) or (f"#{service}" if service else "")
