"""Service ids as people know them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import chooser, protocol_text, text
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.plans.registry import SERVICES


class PortName(NamedTuple):
    """The name of a service port; all but ``service`` is empty for an id without a name."""

    namespace: str = ""
    name: str = ""
    port_name: str = ""
    number: int = 0
    protocol: str = ""
    family: str = ""
    service: int = 0

    @property
    def text(self) -> str:
        """``namespace/name:port``, the port's number where it has no name; ``#7`` without name."""
        if not self.namespace:
            return f"#{self.service}"
        return f"{self.namespace}/{self.name}:{self.port_name or self.number}"


def port_names(entries: EntryReader) -> Iterator[PortName]:
    """Return the names of all service ports; raise what :class:`EntryReader` raises."""
    return (
        PortName(
            *(port.namespace, port.name, port.port_name, number),
            *(protocol_text(port.protocol), f"IPv{port.family}", service),
        )
        for service, port, number in entries.read(SERVICES)
    )


def service_keys(reader: Reader) -> list[tuple[str, str]]:
    """Return namespace and name of each Service in the kernel, sorted."""
    choose = chooser(reader.layout.maps["services"].value, ("namespace", "name"))
    fields = (choose(value) for _, value in reader.entries("services"))
    return sorted({(text(namespace), text(name)) for namespace, name in fields})


class ServiceNames:
    """Service ids as :attr:`PortName.text`."""

    def __init__(self, reader: Reader) -> None:
        self._names: dict[int, str] = {}
        try:
            names = port_names(EntryReader(reader))
        except KernelError:
            return  # another build's: ids stay numbers
        self._names = {name.service: name.text for name in names}

    def __getitem__(self, service: int) -> str:
        """Return the name; ``#7`` for an id that has none, "" for 0."""
        return self._names.get(service) or (f"#{service}" if service else "")
