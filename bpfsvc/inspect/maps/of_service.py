"""The rows of one Service, in all maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.base.near_misses import meant_text
from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row

_SERVICE, _ENDPOINT = "service", "endpoint"
_NAMES = ("namespace", "name", "port_name", "port")


class UnknownService(BpfsvcError):
    """The kernel has no entries of a Service."""


class OneService:
    """A Service, ``NAMESPACE/NAME``, or one port of it, ``NAMESPACE/NAME:PORT``."""

    def __init__(self, text: str) -> None:
        """Raises ``UsageError`` for a text that names no Service."""
        name, colon, port = text.partition(":")
        if name.count("/") != 1 or "" in name.split("/") or (colon and not port):
            raise UsageError(
                f"{text!r} does not name a Service", "write NAMESPACE/NAME, or NAMESPACE/NAME:PORT"
            )
        self._text = text
        self._name = name
        self._port = port

    def require(self, reader: Reader) -> None:
        """Raise :class:`UnknownService` if the kernel has no entries of the Service."""
        (services,) = dump(reader, ["services"])
        if not self._rows_of_names(services):
            names = {f"{row[0]}/{row[1]}" for row in services.rows}
            raise UnknownService(
                f"the kernel holds no Service {self._text}{meant_text(self._name, names)}",
                "list them with: bpfsvc maps dump services",
            )

    def dump(self, reader: Reader, wanted: Iterable[str] = ()) -> Iterator[Records]:
        """Yield, as :func:`~bpfsvc.inspect.maps.dump.dump`, the rows of the Service.

        Maps without rows of Services are left out; a name of such a map is an error.
        """
        named = tuple(wanted)
        for records in dump(reader, named):
            rows = self._rows(reader, records)
            if rows is not None:
                yield replace(records, rows=rows)
            elif named:
                raise UsageError(
                    f"rows of map {records.name} belong to no Service",
                    "leave out --service, or choose another map",
                )

    def _rows(self, reader: Reader, records: Records) -> list[Row] | None:
        if records.columns[: len(_NAMES)] == _NAMES:
            return self._rows_of_names(records)
        if _SERVICE in records.columns:
            at = records.columns.index(_SERVICE)
            return [row for row in records.rows if self._is_meant(str(row[at]))]
        if records.columns[0] == _ENDPOINT:
            places = self._backends(reader)
            return [row for row in records.rows if str(row[0]).rpartition("/")[0] in places]
        return None

    def _rows_of_names(self, records: Records) -> list[Row]:
        return [
            row
            for row in records.rows
            if f"{row[0]}/{row[1]}" == self._name
            and (not self._port or self._port in (str(row[2]), str(row[3])))
        ]

    def _backends(self, reader: Reader) -> set[str]:
        (backends,) = dump(reader, ["backends"])
        at = backends.columns.index(_SERVICE), backends.columns.index("backend")
        return {str(row[at[1]]) for row in backends.rows if self._is_meant(str(row[at[0]]))}

    def _is_meant(self, shown: str) -> bool:
        """True for a service port as the maps show it, by the port's name, or without a name."""
        name, _, port = shown.partition(":")
        return name == self._name and (not self._port or port == self._port)
