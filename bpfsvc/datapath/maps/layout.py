"""The layout of the maps, as the C compiler sees it, and entries made from it.

The C structs are the only declaration. The compiler process describes them as JSON and leaves that
in the pinned map ``layout``, so that a program that reads the maps later needs neither bcc nor the
sources, and an agent can read maps of an older version as well as its own.

The same goes for numbers that both halves use: every constant of an ``enum`` in the C sources is in
the layout by its name, and nowhere else. (What is a ``#define`` there concerns the C alone.)

Two conventions of the C carry over: a struct of one array ``words`` is an address (16 bytes in
network order), and a 16-bit field is in network order if its name ends with ``port``.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.bpf_map import Map

Field = tuple[str, str]
"""Name (nested ones with dots) and format of :mod:`struct`; padding has the name ``""``."""

Value = int | bytes


@dataclass(frozen=True, slots=True)
class Record:
    """The layout of a key or a value: a flat list of fields."""

    fields: tuple[Field, ...]

    @property
    def codec(self) -> struct.Struct:
        """The codec of the whole record, in field order, ports still in network order."""
        return struct.Struct("=" + "".join(kind for _, kind in self.fields))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that carry a value."""
        return tuple(name for name, _ in self.fields if name)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.codec.size

    def places(self) -> Iterator[tuple[str, str, int]]:
        """Yield all fields, padding included: name, format, offset."""
        at = 0
        for name, kind in self.fields:
            yield name, kind, at
            at += struct.calcsize("=" + kind)

    def offsets(self, *names: str) -> dict[str, int]:
        """Return where some fields begin; raise :class:`KernelError` if there is none of a name."""
        self.pick(*names)
        return {name: at for name, _, at in self.places() if name in names}

    def unpack(self, data: bytes) -> dict[str, Value]:
        """Return the bytes of a key or value as a dict, ports in host order."""
        values = dict(zip(self.names, self.codec.unpack_from(data), strict=True))
        for name, kind in self.fields:
            if is_port(name, kind):
                values[name] = socket.ntohs(values[name])
        return values

    def pack(self, values: Mapping[str, Value]) -> bytes:
        """Return the bytes of a dict; missing fields are zero, unknown ones raise ``KeyError``."""
        unknown = set(values) - set(self.names)
        if unknown:
            raise KeyError(f"no such field: {', '.join(sorted(unknown))}")
        ordered: list[Value] = []
        for name, kind in self.fields:
            if not name:
                continue
            value = values.get(name, b"" if kind.endswith("s") else 0)
            if is_port(name, kind):
                value = socket.htons(int(value))
            ordered.append(value)
        return self.codec.pack(*ordered)

    def pick(self, *names: str) -> struct.Struct:
        """Return a codec of some fields, in the order of the layout, ports in network order."""
        missing = set(names) - set(self.names)
        if missing:
            raise KernelError(f"the layout has no field {', '.join(sorted(missing))}")
        return struct.Struct(
            "="
            + "".join(
                kind if name in names else f"{struct.calcsize('=' + kind)}x"
                for name, kind in self.fields
            )
        )

    def expect(self, what: str, names: Sequence[str]) -> struct.Struct:
        """Return the codec; :class:`KernelError` if the fields are not ``names``, in that order."""
        if self.names != tuple(names):
            raise KernelError(
                f"the layout of {what} is {', '.join(self.names)}; expected {', '.join(names)}",
                "the installed C sources and this version of bpfsvc do not belong together",
            )
        return self.codec


def is_port(name: str, kind: str) -> bool:
    """True if a field is a port, which is in network order."""
    return kind == "H" and name.endswith("port")


@dataclass(frozen=True, slots=True)
class MapLayout:
    """One map: what decides whether an existing one can be used by new programs as it is."""

    type: str
    key: Record
    value: Record
    max_entries: int
    flags: int

    def cpu_values(self, value: bytes) -> Iterator[bytes]:
        """Yield the value of each CPU; of a map without values per CPU, the value itself."""
        if not self.type.startswith("percpu"):
            yield value
            return
        # The kernel pads each to eight bytes.
        step = self.value.size + -self.value.size % 8
        for at in range(0, len(value), step):
            yield value[at : at + step]


_EARLIER_CONSTANTS = {
    **{"HOOK_INGRESS": 1, "HOOK_EGRESS": 2},
    **{"CLIENT_POD": 0, "CLIENT_NODE": 1, "CLIENT_OTHER": 2},
    **{"SOURCE_UNKNOWN": 0, "SOURCE_LEARNED": 1, "SOURCE_TRIED": 2, "SOURCE_PROVEN": 3},
    "SOURCE_UNSURE": 4,
}
"""Constants of builds without constants in their layout: those that reading their maps needs."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All maps of one build, the constants of its enums, and structs that are no map's value.

    ``digest`` identifies sources and sizes, so the programs too.
    """

    digest: str
    maps: dict[str, MapLayout]
    constants: dict[str, int] = field(default_factory=dict)
    structs: dict[str, Record] = field(default_factory=dict)

    def struct(self, name: str) -> Record:
        """Return a struct of the C sources; raise :class:`KernelError` if this build has none."""
        try:
            return self.structs[name]
        except KeyError:
            raise self._lacks(f"struct {name}") from None

    def constant(self, name: str) -> int:
        """Return a constant of the C sources; raise :class:`KernelError` if this build has none."""
        try:
            return self.constants[name]
        except KeyError:
            raise self._lacks(f"constant {name}") from None

    def _lacks(self, what: str) -> KernelError:
        return KernelError(
            f"the kernel programs of build {self.digest} have no {what}",
            "restart the agent, so that it loads its own: bpfsvc run",
        )

    def constants_named(self, prefix: str) -> dict[int, str]:
        """Return number -> name of the constants with a prefix, without it and in lower case."""
        return {
            number: name.removeprefix(prefix).lower()
            for name, number in self.constants.items()
            if name.startswith(prefix)
        }

    def to_json(self) -> str:
        """Return the text that goes into the ``layout`` map."""
        maps = {
            name: {
                "type": m.type,
                "key": [list(f) for f in m.key.fields],
                "value": [list(f) for f in m.value.fields],
                "max_entries": m.max_entries,
                "flags": m.flags,
            }
            for name, m in self.maps.items()
        }
        structs = {name: [list(f) for f in record.fields] for name, record in self.structs.items()}
        whole = {"digest": self.digest, "constants": self.constants, "maps": maps}
        whole |= {"structs": structs}
        return json.dumps(whole, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what :meth:`to_json` wrote; ``ValueError`` or ``KeyError`` for anything else."""
        raw: dict[str, Any] = json.loads(text)
        maps = {
            name: MapLayout(
                type=m["type"],
                key=_record(m["key"]),
                value=_record(m["value"]),
                max_entries=m["max_entries"],
                flags=m["flags"],
            )
            for name, m in raw["maps"].items()
        }
        structs = {name: _record(fields) for name, fields in raw.get("structs", {}).items()}
        return cls(raw["digest"], maps, raw.get("constants", _EARLIER_CONSTANTS), structs)


def read_layout(maps: Path) -> Layout:
    """Read the description that an earlier process left among the pinned maps."""
    layout_map = Map.pinned(maps / "layout")
    try:
        raw = layout_map.lookup(bytes(4)) or b""
    finally:
        layout_map.close()
    try:
        return Layout.from_json(raw.rstrip(b"\0").decode())
    except (ValueError, KeyError) as error:
        raise KernelError(
            f"{maps}/layout does not hold a layout", "remove it with: bpfsvc cleanup"
        ) from error


def _record(fields: list[list[str]]) -> Record:
    return Record(tuple((name, kind) for name, kind in fields))
