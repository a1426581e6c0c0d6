"""Entries of the maps of Services as bytes, and back, by the names of their fields.

The C structs say where a field is and how wide; the type of an entry
(:mod:`bpfsvc.services.plans.registry`) says which Python value it is. An :class:`EntryCodec` joins
both once, when the maps are opened, so that no map needs code of its own:

* ``x_id`` of Python is ``x`` in C. A nested name may lack its beginning there:
  ``policies.pod.first`` is ``pod.first``. A key that is a plain number is named ``value``.
* A :class:`Network` is an address and, under the name ``prefix``, the number of bits that count:
  the bits of the network and of all fields between the prefix and the address.
* Numbers named ``...port`` are in network order, texts end with zeros, a tuple is an array of
  32-bit numbers, a :class:`PlaceRun` and a :class:`CandidateRun` are written as they are, and
  padding is zero.
* A value without any field of the entry is zero; if it is a plain number, 1.

A hundred thousand entries are written at the start. So an entry is taken apart and put together by
functions of the standard library that run in C (``attrgetter``, ``struct``, ``_make``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from sys import intern
from typing import Any, Generic, NamedTuple, get_type_hints

from bpfsvc.base.errors import KernelError
from bpfsvc.base.networks import Network
from bpfsvc.datapath.maps.layout import MapLayout, Record, is_port
from bpfsvc.services.entries import Policies
from bpfsvc.services.scheduling.extra import CandidateRun, PlaceRun
from bpfsvc.services.service_map import E, ServiceMap

_NUMBER = "value"
"""The name that the layout gives to a key or value that is a plain number."""

_PREFIX = "prefix"
"""The name of the number of bits that count, in the keys of an LPM trie."""

_PADDING = "zero"
"""The last part of the name of every padding field."""

_SHARED = Policies
"""Nearly all frontends have one of a few policies, so equal policies become one object."""

_Flat = tuple[Any, ...]
"""The leaves of an entry, in the order of its type."""


class EntryCodec(Generic[E]):
    """Encodes and decodes the entries of one map."""

    encode: Callable[[E], tuple[bytes, bytes]]
    """Returns the key and the value of an entry."""

    encode_key: Callable[[Any], bytes]
    """Returns the bytes of what ``ServiceMap.key`` returns."""

    unknown: tuple[str, ...]
    """Fields of the C struct that the entry does not have; only a ``lenient`` codec has any."""

    def __init__(
        self, service_map: ServiceMap[E], layout: MapLayout, *, lenient: bool = False
    ) -> None:
        """Raise :class:`KernelError` if the layout is not one of such entries.

        ``lenient``: to read another build's entries. Fields that its C struct does not have get
        their defaults, and further fields of the struct are left out.
        """
        name, leaves = service_map.name, list(_leaves(service_map.entry))
        in_key = service_map.fields[: service_map.key_fields]
        key = [leaf for leaf in leaves if leaf.path.partition(".")[0] in in_key]
        value = leaves[len(key) :]
        if len(key) == 1:
            key = [key[0]._replace(names=(*key[0].names, _NUMBER))]
        self._key = _Struct(f"the keys of map {name}", layout.key, key, lenient=lenient)
        self._value = _Struct(f"the values of map {name}", layout.value, value, lenient=lenient)
        self.unknown = (*self._key.unknown, *self._value.unknown)
        self._decode = self._key.decode + self._value.decode
        self._entry = service_map.entry
        self.encode = self._encoder(layout.value)
        self.encode_key = self._key_encoder(service_map)

    def _encoder(self, record: Record) -> Callable[[E], tuple[bytes, bytes]]:
        pack_key, pack_value = self._key.packer(), self._value.packer()
        if self._value.leaves:
            return lambda entry: (pack_key(entry), pack_value(entry))
        constant = struct.pack("=I", 1) if record.names == (_NUMBER,) else bytes(record.size)
        return lambda entry: (pack_key(entry), constant)

    def _key_encoder(self, service_map: ServiceMap[E]) -> Callable[[Any], bytes]:
        """Return a function that packs the key of an entry that has no value."""
        pack_key, make = self._key.packer(), service_map.make
        nothing = (None,) * (len(service_map.fields) - service_map.key_fields)
        if service_map.key_fields == 1:
            return lambda key: pack_key(make((key, *nothing)))
        return lambda key: pack_key(make((*key, *nothing)))

    def decode(self, items: Iterable[tuple[bytes, bytes]]) -> Iterator[E]:
        """Decode keys and values; equal policies among the entries become one object."""
        make = _maker(self._entry, self._decode)
        unpack_key, unpack_value = self._key.unpacker(), self._value.unpacker()
        if not self._value.leaves:
            return (make(unpack_key(key)) for key, _ in items)
        return (make(unpack_key(key) + unpack_value(value)) for key, value in items)


class _Leaf(NamedTuple):
    """A field of an entry that is a field of the C struct, too.

    ``path``: the attributes that lead to it, with dots. ``names``: what it may be called in C.
    """

    path: str
    names: tuple[str, ...]
    type: Any
    default: Any = None
    """None: the C struct must have it."""


def _leaves(kind: Any, path: str = "", starts: tuple[str, ...] = ("",)) -> Iterator[_Leaf]:
    """Yield the leaves of a type in order. ``starts``: how their names may begin in C."""
    hints = get_type_hints(kind)
    for field in kind._fields:
        inner, at = hints[field], f"{path}{field}"
        names = tuple(start + field.removesuffix("_id") for start in starts)
        if inner is Network:
            yield _Leaf(f"{at}.address", names, bytes)
            yield _Leaf(f"{at}.bits", (_PREFIX,), Network)
        elif hasattr(inner, "_fields"):
            yield from _leaves(inner, f"{at}.", (*(f"{name}." for name in names), ""))
        else:
            yield _Leaf(at, names, inner, kind._field_defaults.get(field))


_Convert = Callable[[Any], Any]


class _Struct:
    """The struct of a key or a value. ``leaves``: in the order of the entry."""

    def __init__(
        self, what: str, record: Record, leaves: Sequence[_Leaf], *, lenient: bool
    ) -> None:
        self.leaves = leaves
        self._order: list[int] = []
        """For each field of the struct that is packed, the index of its leaf."""
        self._encode: list[tuple[int, _Convert]] = []
        self.decode: list[_Convert | None] = [None] * len(leaves)
        """For each leaf what converts it after it is unpacked, if it needs that."""
        formats, unknown = [], []
        for name, kind in record.fields:
            index = next(
                (index for index, leaf in enumerate(leaves) if name and name in leaf.names), None
            )
            if index is None:
                formats.append(f"{struct.calcsize('=' + kind)}x")
                unknown += [name] if name and name.rpartition(".")[2] != _PADDING else []
                continue
            encode, self.decode[index] = _conversions(record, name, kind, leaves[index].type)
            self._encode += [(len(self._order), encode)] if encode else []
            self._order.append(index)
            formats.append(kind)
        self.unknown = unknown if leaves else []
        self._missing = [index for index in range(len(leaves)) if index not in self._order]
        required = [
            index for index in self._missing if not lenient or leaves[index].default is None
        ]
        if required or (self.unknown and not lenient):
            raise KernelError(
                f"the layout of {what} is {', '.join(record.names)}; expected "
                f"{', '.join(leaf.names[0] for leaf in leaves)}",
                "the installed C sources and this version of bpfsvc do not belong together",
            )
        self._codec = struct.Struct("=" + "".join(formats))

    def packer(self) -> Callable[[Any], bytes]:
        """Return a function that packs the leaves of an entry."""
        pack, conversions = self._codec.pack, self._encode
        paths = [self.leaves[index].path for index in self._order]
        get = _tuple_getter(paths)
        if not conversions:
            return lambda entry: pack(*get(entry))

        def pack_converted(entry: Any) -> bytes:
            values = [*get(entry)]
            for position, convert in conversions:
                values[position] = convert(values[position])
            return pack(*values)

        return pack_converted

    def unpacker(self) -> Callable[[bytes], _Flat]:
        """Return a function from bytes to the leaves in the order of the entry."""
        unpack, order = self._codec.unpack, self._order + self._missing
        if order == sorted(order) and not self._missing:
            return unpack
        reorder = itemgetter(*map(order.index, range(len(order))))
        defaults = tuple(self.leaves[index].default for index in self._missing)
        return lambda data: reorder(unpack(data) + defaults)


def _tuple_getter(paths: Sequence[str]) -> Callable[[Any], _Flat]:
    """Return the function from an entry to the attributes at ``paths``."""
    if len(paths) > 1:
        return attrgetter(*paths)
    if not paths:
        return lambda _: ()
    get = attrgetter(*paths)
    return lambda entry: (get(entry),)


def _conversions(
    record: Record, name: str, kind: str, of_type: Any
) -> tuple[_Convert | None, _Convert | None]:
    """Return what a field needs before it is packed and after it is unpacked, if anything."""
    if of_type is Network:
        names = [field for field, _ in record.fields]
        between = record.fields[names.index(_PREFIX) + 1 : -1]
        bits = 8 * struct.calcsize("=" + "".join(kind for _, kind in between))
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


def _maker(kind: Any, decode: Sequence[_Convert | None]) -> Callable[[_Flat], Any]:
    """Return a function from the unpacked leaves of a type to a value of the type.

    ``decode``: the conversion of each leaf, if it needs one.
    """
    hints, start = get_type_hints(kind), 0
    make: Callable[[Iterable[Any]], Any] = kind._make
    conversions: list[tuple[int, _Convert]] = []
    nested: list[tuple[slice, Callable[[_Flat], Any]]] = []
    for field in kind._fields:
        size = _size(hints[field])
        leaves = slice(start, start + size)
        if hasattr(hints[field], "_fields"):
            nested.append((leaves, _maker(hints[field], decode[leaves])))
        elif convert := decode[start]:
            conversions.append((start, convert))
        start += size
    if not nested and not conversions:
        return make
    nested.reverse()  # so that the slices of those before it hold

    def make_converted(flat: _Flat) -> Any:
        values = [*flat]
        for at, convert in conversions:
            values[at] = convert(values[at])
        for leaves, make_inner in nested:
            values[leaves] = (make_inner(flat[leaves]),)
        return make(values)

    return lru_cache(maxsize=None)(make_converted) if kind is _SHARED else make_converted


def _size(kind: Any) -> int:
    """Return the number of leaves of a type."""
    if not hasattr(kind, "_fields"):
        return 1
    return sum(map(_size, get_type_hints(kind).values()))
