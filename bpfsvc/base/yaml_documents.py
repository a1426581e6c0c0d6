"""YAML text as plain values, read the way kubectl reads it, with the line of every field; and back.

PyYAML composes the nodes (libyaml does, where PyYAML is built with it); what they become is decided
here, because ``yaml.safe_load`` differs from kubectl in four ways:

* It makes dates of ``2024-01-01`` and base-60 numbers of ``22:30``. For kubectl both are text,
  ``010`` is eight, ``1e3`` is a number, and keys become text.
* It keeps the last of two equal keys and reports nothing.
* It does not say where a field is.
* It descends by recursion in C, without a limit: 200 KB of ``[`` end the process.

It is also slower: 128 us for a Service of 18 lines, against 92 us here.

JSON is YAML, but for pairs of ``\\u`` escapes, which libyaml refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import BaseResolver

FieldPath = tuple[str | int, ...]
"""The keys and the list positions that lead to a field; ``()`` is the document."""

_DEPTH_LIMIT = 100
_TOO_DEEP = f"nested deeper than {_DEPTH_LIMIT} levels"
_TAG = "tag:yaml.org,2002:"
_STR, _MAP, _SEQ, _MERGE = (_TAG + name for name in ("str", "map", "seq", "merge"))
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "binary"))


class YamlError(Exception):
    """Text that is not usable YAML; ``line`` counts from 1 within the text."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


class Document(NamedTuple):
    """One document: its value, and the keys of it that were given more than once."""

    value: Any
    repeated: tuple[FieldPath, ...]
    root: Node

    def line(self, path: FieldPath = ()) -> int:
        """Return the line of a field, from 1, or of the nearest field around it."""
        node, nearest = self.root, self.root
        for step in path:
            entry = _entry(node, step)
            if entry is None:
                break
            nearest, node = entry
        return _line(nearest)


def read(data: bytes, *, last_wins: bool = False) -> Iterator[Document]:
    """Read the documents of a text one by one, except those that are empty or null.

    A key that is given twice is refused; with ``last_wins`` its last value counts, and
    ``Document.repeated`` names it. Raises :class:`YamlError`.
    """
    count = 0
    try:
        for document in _read(_Loader, data, last_wins):
            count += 1
            yield document
    except _AnchorUsedAgain:
        yield from islice(_read(_PythonLoader, data, last_wins), count, None)


class _AnchorUsedAgain(Exception):
    """An anchor name is used twice in a document: YAML allows it, libyaml's composer does not."""


def _read(kind: type[Any], data: bytes, last_wins: bool) -> Iterator[Document]:
    loader = None
    try:
        loader = kind(data)
        while loader.check_node():
            root = loader.get_node()
            values = _Values(last_wins)
            value = values.of(root, (), root)
            if value is not None:
                yield Document(value, tuple(values.repeated), root)
    except yaml.MarkedYAMLError as error:
        if "duplicate anchor" in (error.context or "") and kind is not _PythonLoader:
            raise _AnchorUsedAgain from error
        raise _syntax_error(data, error) from error
    except yaml.reader.ReaderError as error:
        line = 1 + data.count(b"\n", 0, error.position)
        raise YamlError(line, str(error.reason)) from error
    finally:
        if loader is not None:
            loader.dispose()


class _Values:
    """The values of the nodes of one document. The node of an alias is the node that it names."""

    def __init__(self, last_wins: bool) -> None:
        self.repeated: list[FieldPath] = []
        self._last_wins = last_wins
        self._known: dict[Node, Any] = {}
        """The values of collections; ``_UNFINISHED`` while the collection is being read."""

    def of(self, node: Node, path: FieldPath, blamed: Node) -> Any:
        """Return the value of a node; an error about an alias names the line of ``blamed``."""
        if node.__class__ is ScalarNode:
            return _scalar(node)
        value = self._known.get(node, self)
        if value is _UNFINISHED:
            raise YamlError(_line(blamed), "an alias is inside of the node that it names")
        if value is not self:
            return value
        if node.tag not in (_MAP, _SEQ):
            raise YamlError(_line(node), f"unknown tag {node.tag}")
        self._known[node] = _UNFINISHED
        read_items = self._mapping if node.__class__ is MappingNode else self._sequence
        value = self._known[node] = read_items(node, path)
        return value

    def _sequence(self, node: Node, path: FieldPath) -> list[Any]:
        return [self.of(item, (*path, n), item) for n, item in enumerate(node.value)]

    def _mapping(self, node: Node, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[Mapping[str, Any]] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += _mappings(key, self.of(value, path, key))
                continue
            is_text = key.tag == _STR and key.__class__ is ScalarNode
            name = key.value if is_text else _key(key)
            here = (*path, name)
            if name in values:
                if not self._last_wins:
                    raise YamlError(_line(key), f"duplicate key {name}")
                self.repeated.append(here)
            is_text = value.__class__ is ScalarNode and value.tag == _STR
            values[name] = value.value if is_text else self.of(value, here, key)
        for inherited in merged:
            values = {**inherited, **values}
        return values


_UNFINISHED = object()


def _mappings(key: Node, value: Any) -> list[Mapping[str, Any]]:
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise YamlError(_line(key), "<< takes a mapping or a list of mappings")
    return mappings


def _key(key: Node) -> str:
    """Return a key as text, as kubectl converts it on the way to JSON."""
    if key.__class__ is not ScalarNode:
        raise YamlError(_line(key), "a key must be plain text")
    value = _scalar(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _scalar(node: Node) -> Any:
    if node.tag in _TEXT_TAGS:
        return node.value
    convert = _CONVERSIONS.get(node.tag)
    if convert is None:
        raise YamlError(_line(node), f"unknown tag {node.tag}")
    try:
        return convert(node.value)
    except (KeyError, ValueError):
        reason = f"{node.value!r} does not fit the tag {node.tag}"
        raise YamlError(_line(node), reason) from None


def _integer(text: str) -> int | str:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 8 if digits.startswith("0") else 10)
    digits = digits[2:] if digits[1:2] in ("b", "o", "x") else digits
    # Longer than any number an object may hold, and quadratic to convert.
    return sign * int(digits, base) if len(digits) <= 64 else text


def _float(text: str) -> float:
    return float(text.replace(".", "", 1) if text.lower().endswith(("inf", "nan")) else text)


_NULLS: dict[str, object] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_BOOLEANS: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_CONVERSIONS: dict[str, Callable[[str], object]] = {
    _TAG + "null": _NULLS.__getitem__,
    _TAG + "bool": _BOOLEANS.__getitem__,
    _TAG + "int": _integer,
    _TAG + "float": _float,
    _MERGE: lambda text: text,
}


# The rules of the YAML library behind kubectl, gopkg.in/yaml.v2 (resolve.go), in their order: the
# tag, the text, and the characters that the text may begin with.
_PLAIN_TEXT = (
    (_TAG + "null", "|".join(map(re.escape, _NULLS)), ("", *"~nN")),
    (_TAG + "bool", "|".join(_BOOLEANS), "tTfFyYnNoO"),
    (
        _TAG + "int",
        r"[-+]?(?:0b_*[01][01_]*|0[0-7_]*|0o_*[0-7][0-7_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|[1-9][0-9_]*)",
        "-+0123456789",
    ),
    (
        _TAG + "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    (_MERGE, "<<", "<"),
)


class _Rules(BaseResolver):
    """What differs from PyYAML's own loaders, through the hooks that they offer."""

    _depth = 0

    def descend_resolver(self, parent: Node | None, _index: object) -> None:
        """Count the levels on the way down; the composer calls this before each node."""
        self._depth += 1
        if self._depth > _DEPTH_LIMIT:
            line = _line(parent) if parent else 1
            raise YamlError(line, _TOO_DEEP)

    def ascend_resolver(self) -> None:
        """Count the levels on the way up."""
        self._depth -= 1


for _tag, _pattern, _characters in _PLAIN_TEXT:
    _Rules.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _characters)


class _PythonLoader(_Rules, yaml.SafeLoader):
    """PyYAML without libyaml: the same nodes, ten times slower."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a node; its anchor may have been used before."""
        if not self.check_event(AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            self.anchors.pop(event.anchor, None)
        return super().compose_node(parent, index)


_Loader: type[Any] = _PythonLoader
if yaml.__with_libyaml__:

    class _LibyamlLoader(_Rules, yaml.CSafeLoader):
        """PyYAML with libyaml."""

    _Loader = _LibyamlLoader


_SafeDumper: type[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):  # type: ignore[misc]
    """Puts into quotes what is text for PyYAML and a number for the library behind kubectl."""


for _tag, _pattern, _characters in _PLAIN_TEXT:
    if _tag in (_TAG + "int", _TAG + "float"):
        _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _characters)

_WIDTH = 1 << 20
"""Columns before PyYAML breaks a line: never."""


def write(*values: object, sort_keys: bool = False) -> str:
    """Return a document for each value; text stays text for each reader, such as ``"1e3"``."""
    text: str = yaml.dump_all(
        values,
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=sort_keys,
        width=_WIDTH,
        allow_unicode=True,
    )
    return text


def _syntax_error(data: bytes, error: yaml.MarkedYAMLError) -> YamlError:
    mark = error.problem_mark or error.context_mark
    reason = ": ".join(part for part in (error.context, error.problem) if part)
    if "maximum nesting depth" in (error.problem or ""):
        # libyaml 0.2.6 reads ahead and stops at its own limit of 1,000 levels before ours.
        reason = _TOO_DEEP
    last = data.rstrip().count(b"\n")
    if mark and mark.line > last and error.context_mark:
        # What is still open at the end of the text must be closed where it began.
        mark = error.context_mark
    return YamlError(1 + (min(mark.line, last) if mark else 0), reason)


def _line(node: Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _entry(node: Node, step: str | int) -> tuple[Node, Node] | None:
    """Return the node that shows where a field is, and the node of its value."""
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    if isinstance(node, MappingNode):
        for key, value in reversed(node.value):
            if isinstance(key, ScalarNode) and _key(key) == step:
                return key, value
    return None
