"""The text of a manifest file as objects, and the lines of errors.

A file holds YAML documents, or JSON values one after another; a document may be a List. JSON is
read by msgspec: 10,000 Services and 10,000 EndpointSlices in one List take 0.5 s. YAML takes 20
times as long, so large collections should be JSON or many files.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from bpfsvc.base import yaml_documents
from bpfsvc.base.yaml_documents import FieldPath, YamlError
from bpfsvc.kube import decoding
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ModelObject, ObjectError, ObjectKey, path_text, read_json, read_object

Objects = tuple[ModelObject, ...]
_Item = TypeVar("_Item")

_LINES_PER_FILE = 10
"""Broken objects that are reported with their lines: to find a line takes long in a large file."""


class Unusable(Exception):
    """A file that cannot be used as it is now."""

    def __init__(self, *problems: ParseError) -> None:
        self.problems = problems
        super().__init__(*map(str, problems))


class Stopped(Exception):
    """Asked to stop in the middle of a file, which may hold ten thousand objects."""


class Content(NamedTuple):
    """The objects of a file, and a problem for each object that cannot be read."""

    objects: Objects
    problems: tuple[ParseError, ...]


class _Malformed(Exception):
    """Text that is no JSON or no UTF-8."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason


class _Value(NamedTuple):
    """A value that should be a single object: JSON text or plain values.

    ``path`` leads to the value within its document; ``find_line`` returns the line of a path.
    """

    value: object
    path: FieldPath
    find_line: Callable[[FieldPath], int]


class _List(msgspec.Struct, Generic[_Item]):
    """A List of the API; nothing else fits. In JSON the items are not parsed."""

    kind: Annotated[str, msgspec.Meta(pattern="List$")]
    items: list[_Item] | None
    api_version: object = msgspec.field(default=None, name="apiVersion")


_decode_list = msgspec.json.Decoder(_List[msgspec.Raw]).decode


def read(name: str, data: bytes, stop: threading.Event | None = None) -> Content:
    """Return what is in the text of file ``name``, in order; kinds of no use are left out.

    Raises :class:`Unusable` for an error of syntax, with the broken objects before it, and
    :class:`Stopped` soon after ``stop`` is set.
    """
    objects: list[ModelObject] = []
    problems: list[ParseError] = []
    try:
        for value, path, find_line in _values(name, data):
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                objects += _read_value(value)
            except ObjectError as error:
                where = (*path, *error.path)
                reason = f"{path_text(where)}: {error.reason}".removeprefix(": ")
                line = find_line(where) if len(problems) < _LINES_PER_FILE else 0
                problems.append(_problem(name, line, reason, value))
    except (YamlError, _Malformed) as error:
        raise Unusable(*problems, ParseError(name, error.line, error.reason)) from error
    return Content(tuple(objects), tuple(problems))


def _problem(file: str, line: int, reason: str, value: object) -> ParseError:
    """Return the problem of a broken object, with its key if that can be read."""
    try:
        text = value if isinstance(value, bytes) else msgspec.json.encode(value)
    except (TypeError, ValueError):
        return ParseError(file, line, reason)
    key = decoding.object_key(text)
    if key is None:
        return ParseError(file, line, reason)
    if not line:
        reason = f"{object_text(key)}: {reason}"
    return ParseError(file, line, reason, key, decoding.service_of(key, text))


def object_text(key: ObjectKey) -> str:
    """Return an object as people name it: ``Service default/web``, ``Node node-1``."""
    return f"{key.kind} {key.namespace}/{key.name}".replace(" /", " ")


class RawObject(NamedTuple):
    """An object as it is written; ``line(path)``: where a field is."""

    value: object
    line: Callable[[FieldPath], int]


def read_raw(name: str, data: bytes) -> Iterator[RawObject]:
    """Yield the objects in the text of a file as they are written, whatever their kind.

    Raises :class:`Unusable` for an error of syntax.
    """
    try:
        for value, path, find_line in _values(name, data):
            plain = msgspec.json.decode(value) if isinstance(value, bytes) else value
            yield RawObject(plain, partial(_line_below, find_line, path))
    except (YamlError, _Malformed) as error:
        raise Unusable(ParseError(name, error.line, error.reason)) from error


def _line_below(find_line: Callable[[FieldPath], int], path: FieldPath, field: FieldPath) -> int:
    return find_line((*path, *field))


def find_lines(name: str, data: bytes, numbers: Collection[int]) -> dict[int, int]:
    """Return the lines of some objects of a file, by their positions among the good ones."""
    lines: dict[int, int] = {}
    number = 0
    # An error of syntax: the file has changed meanwhile and will be read again.
    with suppress(YamlError, _Malformed):
        for value, path, find_line in _values(name, data):
            with suppress(ObjectError):
                for _ in _read_value(value):
                    if number in numbers:
                        lines[number] = find_line((*path, "metadata", "name"))
                    number += 1
    return lines


def _values(name: str, data: bytes) -> Iterator[_Value]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
        raise _Malformed(1 + data.count(b"\n", 0, error.start), reason) from error
    if name.endswith(".json"):
        for line, text in _json_texts(data):
            yield from _items(_Value(text, (), partial(_json_line, line, text)))
    else:
        for document in yaml_documents.read(data):
            yield from _items(_Value(document.value, (), document.line))


def _items(candidate: _Value) -> Iterator[_Value]:
    """Return the items of a List, and of a List within it; return any other value as it is."""
    value, path, find_line = candidate
    api_list: _List[Any] | None = None
    with suppress(msgspec.ValidationError):
        if not isinstance(value, bytes):
            api_list = msgspec.convert(value, _List[object])
        elif b'"items"' in value:
            api_list = _decode_list(value)
    if api_list is None:
        yield candidate
        return
    kind = api_list.kind.removesuffix("List")
    # The items of a ``ServiceList`` leave out what they are.
    defaults = {"kind": kind, "apiVersion": api_list.api_version}
    for index, raw in enumerate(api_list.items or ()):
        item = bytes(raw) if isinstance(raw, msgspec.Raw) else raw
        if kind:
            plain = msgspec.json.decode(item) if isinstance(item, bytes) else item
            item = defaults | plain if isinstance(plain, dict) else plain
        yield from _items(_Value(item, (*path, "items", index), find_line))


def _read_value(value: object) -> Objects:
    if isinstance(value, bytes):
        return read_json(value)
    if isinstance(value, dict):
        return read_object(value)
    kinds = {list: "a list", str: "text", type(None): "nothing"}
    raise ObjectError((), f"expected an object, got {kinds.get(type(value), 'a bare value')}")


_validate = msgspec.json.Decoder(msgspec.Raw).decode
_BLANKS = re.compile(r"[ \t\r\n]*")


def _json_texts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the texts of the values of a file, and the line where each begins."""
    try:
        _validate(data)
        yield 1, data
        return
    except (msgspec.DecodeError, RecursionError):
        text = data.decode("utf-8-sig")
    # The standard library knows where a value ends, and where a value is broken.
    decoder, end = json.JSONDecoder(), 0
    while (start := _BLANKS.match(text, end).end()) < len(text):  # type: ignore[union-attr]
        line = 1 + text.count("\n", 0, start)
        try:
            _, end = decoder.raw_decode(text, start)
            value = text[start:end].encode()
            _validate(value)
        except json.JSONDecodeError as error:
            line = min(error.lineno, 1 + text.rstrip().count("\n"))
            raise _Malformed(line, f"malformed JSON: {error.msg}") from error
        except msgspec.DecodeError as error:
            raise _Malformed(line, f"malformed JSON: {error}") from error
        except RecursionError as error:
            raise _Malformed(line, "malformed JSON: nested too deeply") from error
        yield line, value


def _json_line(line: int, text: bytes, path: FieldPath) -> int:
    """Return the line of a field of a JSON text that begins at ``line``."""
    if len(path) > 1 and path[0] == "items" and isinstance(index := path[1], int):
        # Only the item is read as YAML, which would take seconds for a large List.
        start = end = 0
        for item in map(bytes, (_decode_list(text).items or [])[: index + 1]):
            start = text.index(item, end)
            end = start + len(item)
        return _json_line(line + text.count(b"\n", 0, start), text[start:end], path[2:])
    try:
        # JSON is YAML but for tabs, which its strings cannot hold.
        documents = yaml_documents.read(text.replace(b"\t", b" "), last_wins=True)
        return line - 1 + next((document.line(path) for document in documents), 1)
    except YamlError:
        return line
