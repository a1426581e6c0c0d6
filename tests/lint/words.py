"""Names that say nothing: ``python -m tests.lint.words [--prose] [PATH ...]``.

A variable called ``one`` or ``each`` has a name of its own in every case: entry, Service, map. With
``--prose``, phrases are listed that stand in place of a noun; they are a report, not an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = {"one", "each", "found", "place", "met", "who"}
LAYOUT = {("pod_netns.h", "found"), ("socket_storage.h", "found"), ("work.h", "place")}
"""Fields of maps: a new name would be another layout, and a newer build would not find them."""
_PHRASES = re.compile(r"\b(of which|that of|those of|what is|whose|to whom|of whom)\b")
_COMMENTS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
_WORD = re.compile(r"(?<![\w.>])[a-z_]+\b")


def _python_names(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def _c_names(text: str) -> Iterator[tuple[int, str]]:
    code = _COMMENTS.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        yield from ((number, word) for word in _WORD.findall(line))


def _sources(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in files if file.suffix in {".py", ".c", ".h"})


def main(arguments: list[str]) -> int:
    """List what names nothing; return 1 if a variable does."""
    prose = "--prose" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--prose"]
    banned = 0
    for file in _sources(paths or [Path("bpfsvc"), Path("bpf"), Path("tests")]):
        text = file.read_text()
        names = _python_names(text) if file.suffix == ".py" else _c_names(text)
        for number, name in sorted(set(names)):
            if name in BANNED and (file.name, name) not in LAYOUT:
                banned += 1
                print(f"{file}:{number}: a variable called {name!r}: call it what it holds")
        if prose:
            for number, line in enumerate(text.splitlines(), 1):
                if phrase := _PHRASES.search(line):
                    print(f"{file}:{number}: {phrase[0]!r}: {line.strip()}")
    return 1 if banned else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
