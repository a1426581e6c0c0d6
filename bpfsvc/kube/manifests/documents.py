"""The documents of a manifest file, cut apart before one of them is parsed, and their objects.

A document here is the text of one API object: a YAML document, a JSON value, or one item of a List.
YAML is cut at ``---`` and ``...``, which can be at the start of a line nowhere else, and a List at
the dashes of its items. A quoted text over several lines can mislead the second; a wrong cut leaves
a quote or a bracket open, and the List is then parsed as one. What is broken is parsed again to
find the line.

Cutting stays because of these measurements (10,000 Services and as many EndpointSlices in a file of
10 MB): a List is read in 3.0 s with 20 MB at the peak, parsed as one in 11 s with 560 MB; after a
change of one object the file is read in 0.13 s, because only that document is parsed. For the same
reason JSON is read by msgspec: 0.5 s instead of the 11 s of the YAML reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType, field

from bpfsvc.base import yaml_documents
from bpfsvc.base.yaml_documents import FieldPath, YamlError
from bpfsvc.model import ModelObject, ObjectError, path_text, read_json, read_object


class ListKind(NamedTuple):
    """What the items of a ``ServiceList`` leave out."""

    kind: str
    api_version: object


class Document(NamedTuple):
    """The text of one object, unparsed, and where it begins in the file, in bytes.

    * ``form``: ``item`` is a YAML list of one, an item of a List with its dash.
    * ``item``: its position in a List, or -1.
    """

    start: int
    text: bytes
    form: Literal["json", "yaml", "item"]
    item: int = -1
    listed: ListKind | None = None

    def digest(self) -> int:
        """Return 64 bits that change with the content, for this process only.

        A document that only moves, in a List or behind its marker, keeps them.
        """
        return hash((self.text.removeprefix(b"---\n"), self.form, self.listed))


class DocumentError(Exception):
    """A document that cannot be used; ``line`` counts from 1 in the file."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


class WrongCut(Exception):
    """An item of a List that cannot be parsed alone: the List must be read as one."""


def split(data: bytes, *, is_json: bool, cut_lists: bool = True) -> Iterator[Document]:
    """Cut the text of a file into documents, one by one; none for comments only.

    With ``cut_lists`` false a YAML List stays in one piece. Raises :class:`DocumentError` for text
    that is not UTF-8 and for malformed JSON.
    """
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
            raise DocumentError(_line_at(data, error.start), reason) from error
    yield from _split_json(data) if is_json else _split_yaml(data, cut_lists)


def read(document: Document, data: bytes) -> tuple[ModelObject, ...]:
    """Parse a document of the file ``data``; nothing for kinds that are not used here.

    Raises :class:`DocumentError`, or :class:`WrongCut` for an item of a List.
    """
    try:
        if document.form == "json" and not document.listed and b'"items"' not in document.text:
            return read_json(document.text)
        return tuple(
            each for value in _values(document) for each in _objects(value, (), document.listed)
        )
    except YamlError as error:
        line = _line_at(data, document.start) + error.line - 1
        raise DocumentError(line, error.reason) from error
    except ObjectError as error:
        in_list: FieldPath = ("items", document.item) if document.item >= 0 else ()
        name = path_text((*in_list, *error.path))
        reason = f"{name}: {error.reason}" if name else error.reason
        raise DocumentError(line_of(document, data, error.path), reason) from error


def line_of(document: Document, data: bytes, path: FieldPath = ("metadata", "name")) -> int:
    """Return the line, from 1, of a field of a document of the file ``data``."""
    text = document.text
    if document.form == "item":
        path = (0, *path)
    elif document.form == "json":
        # JSON is YAML but for tabs, which its strings cannot hold.
        text = text.replace(b"\t", b" ")
    try:
        line = next((one.line(path) for one in yaml_documents.read(text, last_wins=True)), 1)
    except YamlError:
        line = 1
    return _line_at(data, document.start) + line - 1


def _line_at(data: bytes, position: int) -> int:
    return 1 + data.count(b"\n", 0, position)


def _values(document: Document) -> list[Any]:
    if document.form == "json":
        return [msgspec.json.decode(document.text)]
    try:
        values = [each.value for each in yaml_documents.read(document.text)]
    except YamlError as error:
        if document.form == "item":
            raise WrongCut from error
        raise
    if document.form == "yaml":
        return values
    if len(values) != 1 or not isinstance(values[0], list) or len(values[0]) != 1:
        raise WrongCut
    return values[0]


def _objects(value: object, path: FieldPath, listed: ListKind | None) -> Iterator[ModelObject]:
    if not isinstance(value, dict):
        raise ObjectError(path, f"expected an object, got {_type_name(value)}")
    if listed is not None:
        value = {"kind": listed.kind, "apiVersion": listed.api_version} | value
    kind, items = value.get("kind"), value.get("items", UNSET)
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list | None):
        for index, item in enumerate(items or ()):
            inner = _listed(kind, value.get("apiVersion"))
            yield from _objects(item, (*path, "items", index), inner)
        return
    try:
        objects = read_object(value)
    except ObjectError as error:
        raise ObjectError((*path, *error.path), error.reason) from error
    yield from objects


def _listed(kind: str, api_version: object) -> ListKind | None:
    return None if kind == "List" else ListKind(kind.removesuffix("List"), api_version)


def _type_name(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), "a bare value")


# -- JSON --


class _Head(msgspec.Struct, gc=False):
    """As much of an object as shows whether it is a List; its items are not parsed."""

    kind: object = None
    api_version: object = field(default=None, name="apiVersion")
    items: list[msgspec.Raw] | UnsetType | None = UNSET


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_python_decoder = json.JSONDecoder()
_SEPARATOR = re.compile(rb"[\s,]*")


def _split_json(data: bytes) -> Iterator[Document]:
    try:
        values = [(0, data, _decode_head(data))]
    except (msgspec.DecodeError, RecursionError):
        # The standard library knows where a value ends, and where it is broken.
        values = list(_several_json_values(data))
    for start, text, head in values:
        kind, items = head.kind, head.items
        if isinstance(items, UnsetType) or not isinstance(kind, str) or not kind.endswith("List"):
            yield Document(start, text, "json")
            continue
        listed = _listed(kind, head.api_version)
        position = data.find(items[0], start) if items else 0
        for index, raw in enumerate(items or ()):
            item = bytes(raw)
            yield Document(position, item, "json", index, listed)
            separator = _SEPARATOR.match(data, position + len(item))
            position = separator.end() if separator else 0


def _several_json_values(data: bytes) -> Iterator[tuple[int, bytes, _Head]]:
    """Return the values that follow one another in a file, where they begin and their heads."""
    characters = data.decode("utf-8-sig")
    start = len(data) - len(characters.encode())
    position = _after_blanks(characters, 0)
    start += position
    while position < len(characters):
        try:
            _, end = _python_decoder.raw_decode(characters, position)
            text = characters[position:end].encode()
            yield start, text, _head(text)
        except json.JSONDecodeError as error:
            line = min(error.lineno, 1 + characters.rstrip().count("\n"))
            raise DocumentError(line, f"malformed JSON: {error.msg}") from error
        except msgspec.DecodeError as error:
            raise DocumentError(_line_at(data, start), f"malformed JSON: {error}") from error
        except RecursionError as error:
            reason = "malformed JSON: nested too deeply"
            raise DocumentError(_line_at(data, start), reason) from error
        position = _after_blanks(characters, end)
        start += len(text) + position - end


def _head(text: bytes) -> _Head:
    try:
        return _decode_head(text)
    except msgspec.ValidationError:
        _decode_raw(text)
        return _Head()


def _after_blanks(characters: str, position: int) -> int:
    while position < len(characters) and characters[position] in " \t\r\n":
        position += 1
    return position


# -- YAML --

_MARKER = re.compile(rb"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_BLANK = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)|%[^\n]*(?:\n|\Z))*?\Z")
_ITEMS = re.compile(rb"^items:[ \t]*(?:#[^\n]*)?\r?\n(?=( *)-[ \t\r\n])", re.MULTILINE)
_AFTER_ITEMS = re.compile(rb"\n(?=[^\s#-])")


def _split_yaml(data: bytes, cut_lists: bool) -> Iterator[Document]:
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for marker in chain(_MARKER.finditer(data), (None,)):
        if marker is None:
            end = following = len(data)
        elif marker.group() == b"...":
            end = following = data.find(b"\n", marker.end()) + 1 or len(data)
        else:
            end = following = marker.start()
        text = data[start:end]
        if not _BLANK.match(text):
            items = _list_items(start, text) if cut_lists and b"items:" in text else None
            yield from items or (Document(start, text, "yaml"),)
        elif text.startswith(b"%") or b"\n%" in text:
            # Directives come before the marker of the document that they are meant for.
            continue
        start = following


def _list_items(start: int, text: bytes) -> Iterator[Document] | None:
    """Cut a List at the dashes of its items; ``None`` if it is no List or looks unusual."""
    head = _ITEMS.search(text)
    if head is None:
        return None
    tail = _AFTER_ITEMS.search(text, head.end())
    end = tail.start() + 1 if tail else len(text)
    try:
        around = yaml_documents.read(text[: head.start()] + text[end:])
        outline = next((each.value for each in around), None)
    except YamlError:
        return None
    if not isinstance(outline, dict) or "items" in outline:
        return None
    kind = outline.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List"):
        return None
    listed = _listed(kind, outline.get("apiVersion"))
    dash = re.compile(rb"\n(?=" + head.group(1) + rb"-[ \t\r\n])")
    cuts = [head.end(), *(cut.end() for cut in dash.finditer(text, head.end(), end)), end]
    return (
        Document(start + first, text[first:last], "item", index, listed)
        for index, (first, last) in enumerate(pairwise(cuts))
    )
