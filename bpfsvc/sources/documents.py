"""The text of a manifest file, cut into documents before anything is parsed.

A document here is what one API object stands in: a YAML document, a JSON document, or one item of
a List. Cutting first means that a change to one object in a file of ten thousand parses one, that
no tree of the whole file is ever in memory, and that an error has a line close by.

YAML can be cut without a parser at ``---`` and ``...``, which may stand at the start of a line
nowhere else. Cutting the items of a List at their dashes is a guess that a quoted text over several
lines could betray; a wrong cut cannot go unnoticed, because it leaves a quote or a bracket open,
and then the whole document is parsed as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from bpfsvc.model import ModelObject, ObjectError, path_text, read_json, read_object
from bpfsvc.sources import jsontext, yamltext
from bpfsvc.sources.jsontext import JsonError
from bpfsvc.sources.yamltext import Path, YamlError

Form = Literal["json", "yaml", "item"]
"""``item`` is a YAML list of one: an item of a List with its dash."""


class ListKind(NamedTuple):
    """What the items of a ``ServiceList`` leave out."""

    kind: str
    api_version: object


class Document(NamedTuple):
    """The text of one object, unparsed. ``item`` is its place in a List, or -1."""

    text: bytes
    form: Form
    item: int = -1
    listed: ListKind | None = None

    def digest(self) -> int:
        """Give 64 bits that change with the content, for this process only.

        Its place is left out, in a List and behind its marker: what moved has not changed.
        """
        return hash((self.text.removeprefix(b"---\n"), self.form, self.listed))


class DocumentError(Exception):
    """A document that cannot be used; ``line`` counts from 1 in the file, 0 is the whole file."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


class WrongCut(Exception):
    """An item of a List that cannot be parsed alone: the List must be read as one."""


def split(data: bytes, *, is_json: bool, unfold: bool = True) -> Iterator[Document]:
    """Cut the text of a file into documents; none for a file of nothing or of comments.

    They are given one by one, so that a second copy of the whole file never exists. With
    ``unfold`` false a YAML List stays in one piece. Raises :class:`DocumentError` for text that is
    not UTF-8 and for JSON that is malformed.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.isascii():
        _check_utf8(data)
    if not is_json:
        yield from _yaml(data, unfold)
        return
    items = jsontext.unfold(data)
    if items is not None:
        yield from _json_items(items)
        return
    try:
        texts = jsontext.split(data)
    except JsonError as error:
        raise DocumentError(error.line + 1, error.reason) from error
    for text in texts:
        items = jsontext.unfold(text)
        if items is None:
            yield Document(text, "json")
        else:
            yield from _json_items(items)


def read(document: Document) -> tuple[ModelObject, ...]:
    """Parse a document into objects; none for kinds that mean nothing here, and for nothing.

    Raises :class:`ObjectError` (path from the document on), ``YamlError`` (line within the
    document) or :class:`WrongCut`.
    """
    if document.form == "json":
        if document.listed is None and b'"items"' not in document.text:
            return read_json(document.text)
        value = jsontext.load(document.text)
    elif document.form == "yaml":
        value = yamltext.load(document.text)
    else:
        value = _load_item(document.text)
    return tuple(_objects(value, (), document.listed)) if value is not None else ()


def explain(
    data: bytes, documents: Sequence[Document], number: int, error: ObjectError | YamlError
) -> DocumentError:
    """Say where in the file the error of ``documents[number]`` is, and what it is."""
    document = documents[number]
    if isinstance(error, YamlError):
        return DocumentError(_first_line(data, documents, number) + error.line, error.reason)
    prefix: Path = ("items", document.item) if document.item >= 0 else ()
    field = path_text((*prefix, *error.path))
    reason = f"{field}: {error.reason}" if field else error.reason
    return DocumentError(line_of(data, documents, number, error.path), reason)


def line_of(
    data: bytes, documents: Sequence[Document], number: int, path: Path = ("metadata", "name")
) -> int:
    """Find the line in the file, from 1, of a field of ``documents[number]``."""
    document = documents[number]
    text = document.text
    if document.form == "json":
        # JSON is YAML enough, but for tabs, which inside its strings cannot stand anyway.
        text = text.replace(b"\t", b" ")
    elif document.form == "item":
        path = (0, *path)
    try:
        offset = yamltext.locate(text, path)
    except YamlError as error:
        # YAML refuses some escapes of JSON; what came before them is still a help.
        offset = 0 if document.form == "json" else error.line
    return _first_line(data, documents, number) + offset


def _first_line(data: bytes, documents: Sequence[Document], number: int) -> int:
    """Find where a document begins: texts stand in the file in order, so look from one to the next.

    Positions are not kept, because nothing asks for them until something is wrong.
    """
    position = 0
    for document in documents[:number]:
        position = data.find(document.text, position) + len(document.text)
    return 1 + data.count(b"\n", 0, data.find(documents[number].text, position))


def _check_utf8(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise DocumentError(
            line, f"not UTF-8: byte 0x{data[error.start]:02x} ({error.reason})"
        ) from error


def _json_items(items: jsontext.Items) -> Iterator[Document]:
    listed = _listed(items.kind, items.api_version)
    for index, text in enumerate(items.texts):
        yield Document(bytes(text), "json", index, listed)


def _listed(kind: str, api_version: object) -> ListKind | None:
    return None if kind == "List" else ListKind(kind.removesuffix("List"), api_version)


def _load_item(text: bytes) -> object:
    try:
        value = yamltext.load(text)
    except YamlError as error:
        raise WrongCut from error
    if not isinstance(value, list) or len(value) != 1:
        raise WrongCut
    return value[0]


def _objects(value: object, path: Path, listed: ListKind | None) -> Iterator[ModelObject]:
    if not isinstance(value, dict):
        raise ObjectError(path, f"expected an object, got {_type_name(value)}")
    if listed is not None:
        value = {"kind": listed.kind, "apiVersion": listed.api_version} | value
    kind, items = value.get("kind"), value.get("items", _NOTHING)
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


_NOTHING = object()


def _type_name(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), "a bare value")


_MARKER = re.compile(rb"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_BLANK = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)|%[^\n]*(?:\n|\Z))*?\Z")
_ITEMS = re.compile(rb"^items:[ \t]*(?:#[^\n]*)?\r?\n(?=( *)-[ \t\r\n])", re.MULTILINE)
_AFTER_ITEMS = re.compile(rb"\n(?=[^\s#-])")


def _yaml(data: bytes, unfold: bool) -> Iterator[Document]:
    for text in _yaml_documents(data):
        items = _yaml_items(text) if unfold and b"items:" in text else None
        if items is None:
            yield Document(text, "yaml")
        else:
            yield from items


def _yaml_documents(data: bytes) -> Iterator[bytes]:
    start = 0
    for marker in _MARKER.finditer(data):
        if marker.group() == b"...":
            line_end = data.find(b"\n", marker.end()) + 1 or len(data)
            end = next_start = line_end
        else:
            end = next_start = marker.start()
        text = data[start:end]
        if _BLANK.match(text):
            # Directives stand before the marker of the document they are meant for.
            start = start if text.startswith(b"%") or b"\n%" in text else next_start
        else:
            yield text
            start = next_start
    text = data[start:]
    if not _BLANK.match(text):
        yield text


def _yaml_items(text: bytes) -> Iterator[Document] | None:
    """Cut a List at the dashes of its items; ``None`` if it is none or looks unusual."""
    head = _ITEMS.search(text)
    if head is None:
        return None
    tail = _AFTER_ITEMS.search(text, head.end())
    end = tail.start() + 1 if tail else len(text)
    try:
        outline = yamltext.load(text[: head.start()] + text[end:])
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
        Document(text[first:last], "item", index, listed)
        for index, (first, last) in enumerate(pairwise(cuts))
    )
