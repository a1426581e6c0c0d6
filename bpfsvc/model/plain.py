"""Values as JSON that people can read, and back: addresses are texts in it.

Named tuples are lists in the order of their fields, so :func:`shape_of` tells whether two versions
mean the same by them.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from bpfsvc.base.address import pack, unpack

_T = TypeVar("_T")

_ADDRESSES, _BYTES = "@addresses", "@bytes"
_SIZE = 16


def to_plain(value: object) -> Any:
    """Return a value as lists, dictionaries, texts and numbers."""
    return _without_bytes(msgspec.to_builtins(value, builtin_types=(bytes,)))


def from_plain(plain: Any, kind: type[_T]) -> _T:
    """Return the value of a kind; raise ``ValueError`` for anything else."""
    try:
        return msgspec.convert(_with_bytes(plain), kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def plain_bytes(value: bytes) -> dict[str, Any]:
    """Return bytes: packed addresses one behind the other, or anything else."""
    if len(value) % _SIZE:
        return {_BYTES: value.hex()}
    return {
        _ADDRESSES: [unpack(value[begin : begin + _SIZE]) for begin in range(0, len(value), _SIZE)]
    }


def shape_of(kind: type) -> str:
    """Return the names of the fields of a named tuple, and of those inside it."""
    shapes: dict[str, str] = {}
    _add_shapes(kind, shapes)
    return ";".join(f"{name}:{fields}" for name, fields in sorted(shapes.items()))


def _add_shapes(kind: Any, shapes: dict[str, str]) -> None:
    for inner in get_args(kind):
        _add_shapes(inner, shapes)
    fields = getattr(kind, "_fields", None)
    if fields and kind.__name__ not in shapes:
        shapes[kind.__name__] = ",".join(fields)
        for hint in get_type_hints(kind).values():
            _add_shapes(hint, shapes)


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return plain_bytes(value)
    if isinstance(value, dict):
        return {key: _without_bytes(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(part) for part in value]
    return value


def _with_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ADDRESSES}:
            return b"".join(map(pack, value[_ADDRESSES]))
        if value.keys() == {_BYTES}:
            return bytes.fromhex(value[_BYTES])
        return {key: _with_bytes(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_bytes(part) for part in value]
    return value
