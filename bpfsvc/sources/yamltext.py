"""YAML text to plain values, read the way kubectl reads it.

PyYAML's own constructor is not used, for four reasons. It makes dates of strings and sixty-based
numbers of ``22:30``, which kubectl does not. It lets the last of two equal keys win in silence. It
descends by recursion in C, so a few kilobytes of ``[[[[`` end the process. And values built
straight from libyaml's events take less than half the time.

Plain scalars follow the rules of the YAML library behind kubectl: ``yes`` and ``on`` are booleans,
``010`` is eight, ``1e3`` is a number, and keys become strings. The line of a field is found by
going over the text again, which costs nothing while all is well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    ScalarEvent,
)
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

Path = tuple[str | int, ...]

_DEPTH_LIMIT = 100
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset((None, "!", _TAG + "str", _TAG + "timestamp", _TAG + "binary"))
_TREE_TAGS = frozenset((None, "!", _TAG + "map", _TAG + "seq"))
_SPECIAL_FIRST = frozenset("-+.0123456789~nNtTfFyYoO<")

_INT = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


class _Sign:
    """A value that no text can have."""


_NO_KEY = _Sign()
_MERGE = _Sign()


class YamlError(Exception):
    """Text that is not usable YAML; ``line`` counts from 0 within the text."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line + 1}: {reason}")


def load(text: bytes) -> object:
    """Read one document; ``None`` when there is none. Raises :class:`YamlError`."""
    root: object = None
    documents = 0
    stack: list[tuple[Any, object, list[Any]]] = []  # the containers around the present one
    anchors: dict[str, object] = {}
    container: Any = None
    key: object = _NO_KEY
    merges: list[Any] = []
    for event in _events(text):
        kind = event.__class__
        value: Any
        if kind is ScalarEvent:
            value = _scalar(event)
        elif isinstance(event, CollectionStartEvent):
            if event.tag not in _TREE_TAGS:
                raise _refused(event, f"unknown tag {event.tag}")
            if container.__class__ is dict and key is _NO_KEY:
                raise _refused(event, "a key must be plain text")
            if len(stack) >= _DEPTH_LIMIT:
                raise _refused(event, f"nested deeper than {_DEPTH_LIMIT} levels")
            stack.append((container, key, merges))
            container = {} if kind is MappingStartEvent else []
            key, merges = _NO_KEY, []
            if event.anchor:
                anchors[event.anchor] = container
            continue
        elif isinstance(event, CollectionEndEvent):
            for merged in merges:
                for name, inherited in merged.items():
                    container.setdefault(name, inherited)
            value = container
            container, key, merges = stack.pop()
        elif kind is AliasEvent:
            if event.anchor not in anchors:
                raise _refused(event, f"alias *{event.anchor} names nothing above it")
            value = anchors[event.anchor]
            if value is container or any(value is outer for outer, _, _ in stack):
                raise _refused(event, f"alias *{event.anchor} stands inside what it names")
        else:
            if kind is DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise _refused(event, "a second document begins without ---")
            continue

        if kind is ScalarEvent and event.anchor:
            anchors[event.anchor] = value
        if container is None:
            root = value
        elif container.__class__ is list:
            container.append(None if value is _MERGE else value)
        elif key is _NO_KEY:
            key = value if value is _MERGE else _key(event, value)
            if key in container:
                raise _refused(event, f"duplicate key {key}")
        elif key is _MERGE:
            merges.extend(_mergeable(event, value))
            key = _NO_KEY
        else:
            container[key] = "<<" if value is _MERGE else value
            key = _NO_KEY
    return root


def locate(text: bytes, path: Path) -> int:
    """Find the line, from 0, of the field at ``path``, or of the nearest thing around it."""
    found, depth = 0, -1
    place: list[str | int] = []  # the path of the present node
    awaits_key: list[bool] = []  # for each container around it: does a key come next?
    is_mapping: list[bool] = []
    for event in _events(text):
        if isinstance(event, CollectionEndEvent):
            place.pop()
            is_mapping.pop()
            awaits_key.pop()
        elif isinstance(event, CollectionStartEvent | ScalarEvent | AliasEvent):
            line = _line(event)
            if not is_mapping:
                found, depth = line, 0
            elif not is_mapping[-1]:
                place[-1] = int(place[-1]) + 1
            elif awaits_key[-1]:
                place[-1] = event.value if isinstance(event, ScalarEvent) else ""
            is_value = bool(is_mapping) and is_mapping[-1] and not awaits_key[-1]
            if is_mapping and is_mapping[-1]:
                awaits_key[-1] = not awaits_key[-1]
            if not is_value and depth < len(place) <= len(path) and _same(place, path):
                found, depth = line, len(place)
            if isinstance(event, CollectionStartEvent):
                mapping = isinstance(event, MappingStartEvent)
                place.append("" if mapping else -1)
                is_mapping.append(mapping)
                awaits_key.append(mapping)
    return found


def _same(place: list[str | int], path: Path) -> bool:
    return all(here == there for here, there in zip(place, path, strict=False))


def _events(text: bytes) -> Iterator[Any]:
    """Give libyaml's events; its complaints become :class:`YamlError`."""
    try:
        parser = _parser(text)
        while (event := parser.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        last = text.rstrip().count(b"\n")
        if mark and mark.line > last and error.context_mark:
            # What is still open at the end of the text is to be mended where it began.
            mark = error.context_mark
        raise YamlError(min(mark.line, last) if mark else 0, reason) from error
    except yaml.reader.ReaderError as error:
        line = text.count(b"\n", 0, error.position)
        raise YamlError(line, error.reason) from error


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line


def _scalar(event: Any) -> object:
    value: str = event.value
    tag: str | None = event.tag
    if tag is None and event.implicit[0]:
        if value and value[0] not in _SPECIAL_FIRST:
            return value
        return _MERGE if value == "<<" else plain(value)
    if tag in _TEXT_TAGS:
        return value
    resolved = plain(value)
    if tag in _CHECKED_TAGS and _CHECKED_TAGS[tag](resolved):
        return resolved
    raise _refused(event, f"{value!r} does not fit the tag {tag}")


_CHECKED_TAGS: dict[str, Callable[[object], bool]] = {
    _TAG + "int": lambda value: type(value) is int,
    _TAG + "float": lambda value: type(value) in (int, float),
    _TAG + "bool": lambda value: type(value) is bool,
    _TAG + "null": lambda value: value is None,
}


def plain(value: str) -> object:
    """Give what unquoted text stands for: null, boolean, number or itself."""
    if value in _WORDS:
        return _WORDS[value]
    if _INT.fullmatch(value):
        return _integer(value.replace("_", ""), value)
    if _FLOAT.fullmatch(value):
        return float(value)
    if _NO_NUMBER.fullmatch(value):
        return float(value.replace(".", "", 1))
    return value


def _integer(digits: str, value: str) -> object:
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 8 if digits.startswith("0") else 10)
    digits = digits[2:] if digits[1:2] in ("b", "o", "x") else digits
    # Longer than any number an object may hold, and quadratic to convert.
    return sign * int(digits, base) if 0 < len(digits) <= 64 else value


def _key(event: Any, value: object) -> str:
    """Make a key a string, as kubectl does on the way to JSON."""
    if not isinstance(event, ScalarEvent) and not isinstance(value, str):
        raise _refused(event, "a key must be plain text")
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _mergeable(event: Any, value: object) -> list[dict[str, object]]:
    mappings: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise _refused(event, "<< takes a mapping or a list of mappings")
    return mappings


def _refused(event: Any, reason: str) -> YamlError:
    return YamlError(_line(event), reason)


class _PythonParser(Reader, Scanner, Parser):
    """PyYAML's own parser: the same events, ten times slower."""

    def __init__(self, text: bytes) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


_parser: Callable[[bytes], Any] = _PythonParser
if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    _parser = CParser
