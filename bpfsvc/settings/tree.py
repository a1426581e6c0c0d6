"""YAML documents as plain values, and the line of every field.

Objects of the cluster are read by :mod:`bpfsvc.sources.yamltext`, which refuses a key that stands
twice. kube-proxy takes the last of them and warns, and a node that was served until today must not
be cut off over it. A file of settings is small, so it is composed as a whole here, and every line
is known. What plain text stands for (null, number, boolean) is decided as it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from bpfsvc.sources.yamltext import Path, plain


class TreeError(Exception):
    """Text that is not usable YAML; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class Tree(NamedTuple):
    """One document: its value, the line of each field, and the fields that stand twice.

    Lines count from 1 in the file. The empty path is the document itself.
    """

    value: Any
    lines: Mapping[Path, int]
    repeated: tuple[Path, ...]

    def line(self, path: Path) -> int:
        """Give the line of a field, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read(data: bytes) -> list[Tree]:
    """Read the documents of a file, but those that are empty. Raises :class:`TreeError`."""
    try:
        roots = [root for root in yaml.compose_all(data, yaml.SafeLoader) if root is not None]
        return [found for found in map(_tree, roots) if found.value is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = data.rstrip().count(b"\n")
        if mark and mark.line > last and error.context_mark:
            # What is still open at the end of the text is to be mended where it began.
            mark = error.context_mark
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        raise TreeError(min(mark.line, last) + 1 if mark else 1, reason) from error
    except yaml.reader.ReaderError as error:
        raise TreeError(1 + data.count(b"\n", 0, error.position), str(error.reason)) from error
    except RecursionError as error:
        raise TreeError(1, "nested too deeply") from error


def _tree(root: Any) -> Tree:
    lines: dict[Path, int] = {}
    repeated: list[Path] = []

    def value_of(node: Any, path: Path) -> Any:
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            found: dict[str, Any] = {}
            for key, value in node.value:
                name = _name(key)
                if name in found:
                    repeated.append((*path, name))
                lines[(*path, name)] = key.start_mark.line + 1
                found[name] = value_of(value, (*path, name))
            return found
        if isinstance(node, SequenceNode):
            return [value_of(each, (*path, number)) for number, each in enumerate(node.value)]
        # Quoted text is text, whatever it looks like.
        return plain(node.value) if node.style is None else node.value

    return Tree(value_of(root, ()), lines, tuple(repeated))


def _name(key: Any) -> str:
    if not isinstance(key, ScalarNode):
        raise TreeError(key.start_mark.line + 1, "a key must be plain text")
    return str(key.value)
