"""Small changes of the C sources, each of one line within a function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

_OPERATORS = {
    "==": ("!=",),
    "!=": ("==",),
    "<=": ("<", ">"),
    ">=": (">", "<"),
    "<": ("<=", ">="),
    ">": (">=", "<="),
    "&&": ("||",),
    "||": ("&&",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+",),
    "/": ("*",),
    "%": ("/",),
    "&": ("|",),
    "|": ("&",),
    "^": ("|",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "|=": ("&=",),
    "&=": ("|=",),
}
# With spaces around: "*" of a pointer, "&" of an address and signs have none.
_OPERATOR = re.compile(r"(?<= )(?:[=!<>]=|&&|\|\||<<|>>|[-+|&]=|[-+*/%&|^<>])(?= |$)")
_NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-fA-F]+|\d+)(?![\w.])")
_NOT = re.compile(r"!(?=[\w(])")
_TRUTH = re.compile(r"\b(true|false)\b")
_BYTE_ORDER = re.compile(r"\bbpf_(?:htons|ntohs|htonl|ntohl|cpu_to_be64|be64_to_cpu)\b")
_STATEMENT = re.compile(r"^\t+(?!return\b|break\b|goto\b|case )[^\n]*;$")
_TYPE = r"struct \w+|enum \w+|union \w+|__\w+|int|bool|void"
_DECLARATION = re.compile(rf"^\t+(?:static |const )*(?:{_TYPE})\s\**\w+")
_COMMENT = re.compile(r"/\*.*?\*/")

AnyChange = TypeVar("AnyChange")
Key = TypeVar("Key", bound=Hashable)


class Change(NamedTuple):
    """A line and what stands in its place; ``kind`` says what was changed."""

    file: str
    line: int
    before: str
    after: str
    kind: str

    @property
    def words(self) -> tuple[str, ...]:
        """The line as it is and the line changed."""
        return self.before.strip(), self.after.strip()


def numbered(
    every: Iterable[AnyChange], key_of: Callable[[AnyChange], Key]
) -> Iterator[tuple[AnyChange, Key, int]]:
    """Yield each change with its key, and how many changes before it have the same key."""
    seen: Counter[Key] = Counter()
    for change in every:
        key = key_of(change)
        yield change, key, seen[key]
        seen[key] += 1


def changes(root: Path) -> Iterator[Change]:
    """Yield all changes of the sources below a folder."""
    for path in sorted((*root.glob("*.c"), *root.rglob("lib/*.h"), *root.rglob("maps/*.h"))):
        yield from _of_file(root, path)
    for path in sorted(root.rglob("path/**/*.h")):
        yield from _of_file(root, path)


def _of_file(root: Path, path: Path) -> Iterator[Change]:
    name = str(path.relative_to(root))
    within, comment = False, False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == "{":
            within = True
        elif line == "}":
            within = False
        if comment or ("/*" in line and "*/" not in line):
            comment = "*/" not in line
            continue
        if within and line.startswith("\t"):
            for after, kind in of_line(line):
                yield Change(name, number, line, after, kind)


def of_line(line: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand in the place of a line, and the kind of the change."""
    hidden = [match.span() for match in _COMMENT.finditer(line)]

    def visible(match: re.Match[str]) -> bool:
        return not any(begin <= match.start() < end for begin, end in hidden)

    def replaced(match: re.Match[str], text: str) -> str:
        return line[: match.start()] + text + line[match.end() :]

    for match in filter(visible, _OPERATOR.finditer(line)):
        for other in _OPERATORS[match[0]]:
            yield replaced(match, other), f"{match[0]} to {other}"
    for match in filter(visible, _NUMBER.finditer(line)):
        value = int(match[0], 0)
        yield replaced(match, str(value + 1)), "a number more"
        if value > 1:
            yield replaced(match, str(value - 1)), "a number less"
    for match in filter(visible, _NOT.finditer(line)):
        yield replaced(match, ""), "no negation"
    for match in filter(visible, _TRUTH.finditer(line)):
        yield replaced(match, "false" if match[0] == "true" else "true"), "the other truth"
    for match in filter(visible, _BYTE_ORDER.finditer(line)):
        yield replaced(match, ""), "no change of byte order"
    if _STATEMENT.match(line) and not _DECLARATION.match(line):
        yield line[: len(line) - len(line.lstrip("\t"))] + ";", "no statement"
