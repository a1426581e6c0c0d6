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
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType, field

from bpfsvc.base import yaml_documents
from bpfsvc.base.yaml_documents import FieldPath, YamlError
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ModelObject, ObjectError, path_text, read_json, read_object

Objects = tuple[ModelObject, ...]

_PROBLEMS_PER_FILE = 10


class Unusable(Exception):
    """A file that cannot be used as it is now."""

    def __init__(self, *problems: ParseError) -> None:
        self.problems = problems
        super().__init__(*map(str, problems))


class Stopped(Exception):
    """Asked to stop in the middle of a file, which may hold ten thousand objects."""


class _Defaults(NamedTuple):
    """What the items of a ``ServiceList`` leave out."""

    kind: str
    api_version: object


class _Document(NamedTuple):
    """One object, or one List, of a file.

    ``objects`` returns the objects and the path to each; ``line`` returns the line of a path.
    """

    objects: Callable[[], Iterator[tuple[FieldPath, ModelObject]]]
    line: Callable[[FieldPath], int]


class _Malformed(Exception):
    """Text that is no JSON or no UTF-8."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason


def read(name: str, data: bytes, stop: threading.Event | None = None) -> Objects:
    """Return the objects in the text of file ``name``, in order; kinds of no use are left out.

    Raises :class:`Unusable` with the errors: each document with a wrong field, up to the first
    error of syntax. Raises :class:`Stopped` soon after ``stop`` is set.
    """
    objects: list[ModelObject] = []
    problems: list[ParseError] = []
    try:
        for document in _documents(name, data):
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                objects += (item for _, item in document.objects())
            except ObjectError as error:
                field_name = path_text(error.path)
                reason = f"{field_name}: {error.reason}" if field_name else error.reason
                problems.append(ParseError(name, document.line(error.path), reason))
            if len(problems) == _PROBLEMS_PER_FILE:
                break
    except (YamlError, _Malformed) as error:
        problems.append(ParseError(name, error.line, error.reason))
    if problems:
        raise Unusable(*problems)
    return tuple(objects)


def find_lines(name: str, data: bytes, numbers: Collection[int]) -> dict[int, int]:
    """Return the lines of some objects of a good file, by their positions in the file."""
    lines: dict[int, int] = {}
    number = 0
    try:
        for document in _documents(name, data):
            for path, _ in document.objects():
                if number in numbers:
                    lines[number] = document.line((*path, "metadata", "name"))
                number += 1
    except (YamlError, _Malformed, ObjectError):
        pass  # the file has changed meanwhile and will be read again
    return lines


def _documents(name: str, data: bytes) -> Iterator[_Document]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
        raise _Malformed(1 + data.count(b"\n", 0, error.start), reason) from error
    if name.endswith(".json"):
        for line, text in _json_values(data):
            yield from _json_documents(line, text)
        return
    for document in yaml_documents.read(data):
        yield _Document(partial(_objects, document.value, (), None), document.line)


def _objects(
    value: object, path: FieldPath, defaults: _Defaults | None
) -> Iterator[tuple[FieldPath, ModelObject]]:
    if not isinstance(value, dict):
        raise ObjectError(path, f"expected an object, got {_type_name(value)}")
    if defaults is not None:
        value = {"kind": defaults.kind, "apiVersion": defaults.api_version} | value
    kind, items = value.get("kind"), value.get("items", UNSET)
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list | None):
        inner = _defaults(kind, value.get("apiVersion"))
        for index, item in enumerate(items or ()):
            yield from _objects(item, (*path, "items", index), inner)
        return
    try:
        for item in read_object(value):
            yield path, item
    except ObjectError as error:
        raise ObjectError((*path, *error.path), error.reason) from error


def _defaults(kind: str, api_version: object) -> _Defaults | None:
    return None if kind == "List" else _Defaults(kind.removesuffix("List"), api_version)


def _type_name(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), "a bare value")


# -- JSON --


class _Head(msgspec.Struct, gc=False):
    """As much of an object as shows whether it is a List; its items are not parsed."""

    kind: object = None
    api_version: object = field(default=None, name="apiVersion")
    items: list[msgspec.Raw] | UnsetType | None = UNSET


_decode_head = msgspec.json.Decoder(_Head).decode
_validate = msgspec.json.Decoder(msgspec.Raw).decode
_BLANKS = re.compile(r"[ \t\r\n]*")


def _json_values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the values of a file, and the line where each begins."""
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


def _json_documents(line: int, text: bytes) -> Iterator[_Document]:
    """Return a value, or each item of a List, which are parsed one by one."""
    try:
        head = _decode_head(text)
    except msgspec.ValidationError:
        head = _Head()
    kind, items = head.kind, head.items
    if isinstance(items, UnsetType) or not (isinstance(kind, str) and kind.endswith("List")):
        yield _json_document(line, text, (), None)
        return
    position = 0
    for index, item in enumerate(map(bytes, items or ())):
        start = text.find(item, position)
        line += text.count(b"\n", position, start)
        yield _json_document(line, item, ("items", index), _defaults(kind, head.api_version))
        line += item.count(b"\n")
        position = start + len(item)


def _json_document(
    line: int, text: bytes, path: FieldPath, defaults: _Defaults | None
) -> _Document:
    return _Document(
        partial(_json_objects, text, path, defaults), partial(_json_line, line, text, len(path))
    )


def _json_objects(
    text: bytes, path: FieldPath, defaults: _Defaults | None
) -> Iterator[tuple[FieldPath, ModelObject]]:
    if defaults is not None or b'"items"' in text:
        yield from _objects(msgspec.json.decode(text), path, defaults)
        return
    try:
        for item in read_json(text):
            yield path, item
    except ObjectError as error:
        raise ObjectError((*path, *error.path), error.reason) from error


def _json_line(first: int, text: bytes, skipped: int, path: FieldPath) -> int:
    """Return the line of a field, by its path in the file; ``skipped`` steps lead to the text."""
    try:
        # JSON is YAML but for tabs, which its strings cannot hold.
        documents = yaml_documents.read(text.replace(b"\t", b" "), last_wins=True)
        lines: Iterator[int] = (document.line(path[skipped:]) for document in documents)
        return first - 1 + next(chain(lines, (1,)))
    except YamlError:
        return first
