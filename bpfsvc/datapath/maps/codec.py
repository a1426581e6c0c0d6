"""Entries of the maps of Services as bytes, and back, by the names of their fields.

The C structs say where a field is and how wide; the type of an entry
(:mod:`bpfsvc.services.plans.registry`) says what it is in Python. They are brought together once,
when the maps are opened, so that no map needs code of its own:

* ``x_id`` of Python is ``x`` in C. A nested name may lack its beginning there:
  ``policies.pod.first`` is ``pod.first``. A key that is a plain number is named ``value``.
* A :class:`Network` is an address and, under the name ``prefix``, the number of bits that count:
  those of the network and of all fields between the prefix and it.
* Numbers named ``...port`` are in network order, texts end with zeros, a tuple is an array of
  32-bit numbers, a :class:`PlaceRun` and a :class:`CandidateRun` are written as they are, and
  padding is zero.
* A value of which the entry names no field is zero; if it is a plain number, 1.

A hundred thousand entries are written at the start, so for each map the functions are put together
as text and compiled, as ``collections.namedtuple`` does it; that halves the time.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import Any, Generic, NamedTuple, get_type_hints

from bpfsvc.base.errors import KernelError
from bpfsvc.base.networks import Network
from bpfsvc.datapath.maps.layout import MapLayout, Record, is_port
from bpfsvc.services.entries import CandidateRun, PlaceRun, Policies
from bpfsvc.services.plans.registry import E, ServiceMap

_NUMBER = "value"
"""The name that the layout gives to a key or value that is a plain number."""

_PREFIX = "prefix"
"""The name of the number of bits that count, in the keys of an LPM trie."""

_PADDING = "zero"
"""The last part of the name of every padding field."""

_SHARED = Policies
"""Of these nearly all frontends have one of a few, so equal ones are made one object."""


class EntryCodec(Generic[E]):
    """Encodes and decodes the entries of one map."""

    encode: Callable[[E], tuple[bytes, bytes]]
    """Returns the key and the value of an entry."""

    encode_key: Callable[[Any], bytes]
    """Returns the bytes of what ``ServiceMap.key`` returns."""

    def __init__(self, one: ServiceMap[E], layout: MapLayout) -> None:
        """Raise :class:`KernelError` if the layout is not one of such entries."""
        key, value = _leaves(one, range(one.key_fields)), _leaves(one, range(len(one.fields)))
        value = value[len(key) :]
        if len(key) == 1:
            key = [key[0]._replace(names=(*key[0].names, _NUMBER))]
        self._entry = one.entry
        self._key = _Struct(f"the keys of map {one.name}", layout.key, key)
        self._value = _Struct(f"the values of map {one.name}", layout.value, value)
        is_number = not value and layout.value.names == (_NUMBER,)
        constant = struct.pack("=I", 1) if is_number else bytes(layout.value.size)
        names = self._key.functions("key") | self._value.functions("value")
        pack_value = self._value.pack_text("value") if value else repr(constant)
        pack_key = self._key.pack_text("key")
        self.encode = eval(f"lambda entry: ({pack_key}, {pack_value})", names)
        # A key of one field is that field; of several it begins as the entry does.
        start = "entry[0]" if one.key_fields == 1 else "entry"
        self.encode_key = eval(f"lambda key: {pack_key.replace(start, 'key')}", names)

    def decode(self, items: Iterable[tuple[bytes, bytes]]) -> Iterator[E]:
        """Decode keys and values; equal policies among the entries become one object."""
        names = self._key.functions("key") | self._value.functions("value")
        leaves = self._key.unpack_texts("key") | self._value.unpack_texts("value")
        text = _make_text(self._entry, "entry", leaves, names)
        make = eval(f"lambda key, value: {text}", names)
        unpack_key, unpack_value = self._key.codec.unpack, self._value.codec.unpack
        if not self._value.fields:
            return (make(unpack_key(key), ()) for key, _ in items)
        return (make(unpack_key(key), unpack_value(value)) for key, value in items)


class _Leaf(NamedTuple):
    """A field of an entry that has one in the C struct.

    ``path`` is the expression that reads it, ``names`` are those it may have in C.
    """

    path: str
    names: tuple[str, ...]
    type: Any


def _leaves(one: ServiceMap[Any], fields: Iterable[int]) -> list[_Leaf]:
    """Return the leaves of some fields of a map's entries."""
    starts = tuple(f"entry[{at}]" for at in fields)
    return [leaf for leaf in _leaves_of(one.entry, "entry", ("",)) if leaf.path.startswith(starts)]


def _leaves_of(kind: Any, path: str, starts: tuple[str, ...]) -> Iterator[_Leaf]:
    """Yield the leaves of a type in order. ``starts``: how their names may begin in C."""
    hints = get_type_hints(kind)
    for at, field in enumerate(kind._fields):
        inner, place = hints[field], f"{path}[{at}]"
        names = tuple(start + field.removesuffix("_id") for start in starts)
        if inner is Network:
            yield _Leaf(f"{place}[0]", names, bytes)
            yield _Leaf(f"{place}[1]", (_PREFIX,), Network)
        elif hasattr(inner, "_fields"):
            yield from _leaves_of(inner, place, (*(f"{name}." for name in names), ""))
        else:
            yield _Leaf(place, names, inner)


class _Field(NamedTuple):
    """A field of the C struct that is packed: its leaf and the functions to and from it."""

    leaf: _Leaf
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None


class _Struct:
    """The struct of a key or a value, and its fields that are not padding."""

    def __init__(self, what: str, record: Record, leaves: list[_Leaf]) -> None:
        self.fields: list[_Field] = []
        formats = []
        for name, kind in record.fields:
            leaf = next((one for one in leaves if name and name in one.names), None)
            if leaf is None:
                formats.append(f"{struct.calcsize('=' + kind)}x")
                continue
            self.fields.append(_Field(leaf, *_conversions(record, name, kind, leaf.type)))
            formats.append(kind)
        named = [name for name in record.names if name.rpartition(".")[2] != _PADDING]
        if len(self.fields) != len(leaves) or (leaves and len(named) != len(leaves)):
            raise KernelError(
                f"the layout of {what} is {', '.join(record.names)}; expected "
                f"{', '.join(leaf.names[0] for leaf in leaves)}",
                "the installed C sources and this version of bpfsvc do not belong together",
            )
        self.codec = struct.Struct("=" + "".join(formats))

    def functions(self, what: str) -> dict[str, Any]:
        """Return all functions that the texts need, by the names they have there."""
        found: dict[str, Any] = {f"pack_{what}": self.codec.pack}
        for at, field in enumerate(self.fields):
            found[f"encode_{what}{at}"] = field.encode
            found[f"decode_{what}{at}"] = field.decode
        return found

    def pack_text(self, what: str) -> str:
        """Return the expression that packs the fields of ``entry``."""
        values = (
            f"encode_{what}{at}({field.leaf.path})" if field.encode else field.leaf.path
            for at, field in enumerate(self.fields)
        )
        return f"pack_{what}({', '.join(values)})"

    def unpack_texts(self, what: str) -> dict[str, str]:
        """Return the expression for each leaf that finds it in the unpacked tuple ``what``."""
        return {
            field.leaf.path: f"decode_{what}{at}({what}[{at}])" if field.decode else f"{what}[{at}]"
            for at, field in enumerate(self.fields)
        }


def _conversions(
    record: Record, name: str, kind: str, of_type: Any
) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """Return what a field needs before it is packed and after it is unpacked, if anything."""
    if of_type is Network:
        names = [each for each, _ in record.fields]
        between = record.fields[names.index(_PREFIX) + 1 : -1]
        bits = 8 * struct.calcsize("=" + "".join(each for _, each in between))
        return lambda value: value + bits, lambda value: value - bits
    if of_type is str:
        return str.encode, lambda value: intern(value.rstrip(b"\0").decode(errors="replace"))
    if of_type is bool:
        return None, bool
    if kind.endswith("s") and of_type not in (bytes, PlaceRun, CandidateRun):
        array = struct.Struct(f"={int(kind[:-1]) // 4}I")
        return lambda value: array.pack(*value), array.unpack
    if is_port(name, kind):
        return socket.htons, socket.ntohs
    return None, None


def _make_text(kind: Any, path: str, leaves: dict[str, str], names: dict[str, Any]) -> str:
    """Return the expression that makes a value of a type; the functions it needs go to ``names``.

    ``leaves`` has the expression for each leaf by its path.
    """
    hints = get_type_hints(kind)
    places = {field: f"{path}[{at}]" for at, field in enumerate(kind._fields)}
    if kind is _SHARED:
        within = {at: text for at, text in leaves.items() if at.startswith(path)}
        numbered = {at: f"flat[{number}]" for number, at in enumerate(within)}
        text = ", ".join(_field_text(hints[f], places[f], numbered, names) for f in kind._fields)
        names[kind.__name__] = kind
        names["share"] = lru_cache(maxsize=None)(
            eval(f"lambda flat: {kind.__name__}({text})", names)
        )
        return f"share(({', '.join(within.values())}))"
    text = ", ".join(_field_text(hints[f], places[f], leaves, names) for f in kind._fields)
    names[kind.__name__] = kind
    return f"{kind.__name__}({text})"


def _field_text(kind: Any, path: str, leaves: dict[str, str], names: dict[str, Any]) -> str:
    is_nested = hasattr(kind, "_fields")
    return _make_text(kind, path, leaves, names) if is_nested else leaves[path]
