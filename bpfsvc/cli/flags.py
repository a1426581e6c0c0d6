"""Flags that set fields of the configuration: their types, and the given values.

Values are read as Go programs read them, so that arguments written for kube-proxy work:
``-v=2`` and ``--masquerade-all=false``. A boolean flag takes its value after ``=`` only; without
one it is true.

A flag has no default of its own. Its value is laid over the documents by :mod:`bpfsvc.config`;
the help shows the defaults of the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.config import durations
from bpfsvc.config.fields import Flag, value_at
from bpfsvc.config.loading import CommandLine

F = TypeVar("F", bound=Callable[..., Any])

_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class FlagType(click.ParamType[Any]):
    """A type of value. ``name`` is its placeholder in the help; ``read`` raises ``ValueError``."""

    def __init__(self, name: str, read: Callable[[str], Any] = str) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a text. A short flag leaves its ``=`` in front of the value."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value.removeprefix("="))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _read_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError(f"{text!r} is not true or false")
    return _BOOLS[text]


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a whole number") from error


def _read_duration(text: str) -> str:
    return str(durations.parse(text))


def _read_gates(text: str) -> dict[str, bool]:
    pairs = [part.partition("=") for part in _read_words(text)]
    for name, _, value in pairs:
        if value.strip() not in _BOOLS:
            raise ValueError(f"{name}={value} is not NAME=true or NAME=false")
    return {name.strip(): _BOOLS[value.strip()] for name, _, value in pairs}


def _read_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_ints(text: str) -> list[int]:
    return [_read_int(part) for part in _read_words(text)]


BOOL = FlagType("[=BOOL]", _read_bool)
INT = FlagType("NUMBER", _read_int)
DURATION = FlagType("DURATION", _read_duration)
GATES = FlagType("NAME=BOOL,...", _read_gates)
PORTS = FlagType("PORT,...", _read_ints)


def text(name: str = "TEXT") -> FlagType:
    """Return the type of any text."""
    return FlagType(name)


def words(name: str = "TEXT,...") -> FlagType:
    """Return the type of texts with commas between them."""
    return FlagType(name, _read_words)


@dataclass(frozen=True, slots=True)
class Option:
    """A flag and the fields it sets, such as ``conntrack.min``; none if it has no effect.

    ``of_kubeproxy``: the fields belong to kube-proxy's document, otherwise to bpfsvc's.
    """

    name: str
    fields: tuple[FieldPath, ...]
    of_kubeproxy: bool
    attributes: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """The flag as people write it."""
        return self.name.partition("/")[0]

    @property
    def parameter(self) -> str:
        """The name by which click knows the value."""
        return self.flag.removeprefix("--").replace("-", "_")

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value as a file would hold it, or None if the flag was not given."""
        value = values[self.parameter]
        if self.attributes.get("multiple"):
            return [item for values in value for item in values] if value else None
        return value


class Table:
    """Describes the flags of one document; the help shows the document's defaults.

    ``defaults``: the document without any field given, as a file would hold it.
    """

    def __init__(self, defaults: Mapping[str, Any], *, of_kubeproxy: bool) -> None:
        self._defaults = defaults
        self._of_kubeproxy = of_kubeproxy

    def option(
        self, name: str, fields: str, kind: Any, help_: str, default: str = "", **more: Any
    ) -> Option:
        """Describe a flag. ``fields`` has spaces between them; ``default`` is shown if given."""
        paths = tuple(tuple(field.split(".")) for field in fields.split())
        shown = default or (_shown(value_at(self._defaults, paths[0])) if paths else "")
        attributes = {"type": kind, "default": None, "help": help_, **more}
        if shown:
            attributes["help"] += f"  [default: {shown}]"
        if kind is BOOL:
            attributes |= {"is_flag": False, "flag_value": "true"}
        if isinstance(kind, FlagType):
            attributes.setdefault("metavar", kind.name)
        return Option(name, paths, self._of_kubeproxy, attributes)

    def ignored(self, name: str, fields: str = "", kind: Any = None) -> Option:
        """Describe a flag without effect."""
        what = "Accepted for compatibility; ignored."
        return self.option(name, fields, kind or text(), what, hidden=True)


def _shown(default: object) -> str:
    """Return how the help shows a default; an empty text if it is no more than "not set"."""
    if isinstance(default, list):
        return ",".join(map(str, default))
    return "" if default in (None, "", {}) or default is False else str(default)


def add(options: Iterable[Option]) -> Callable[[F], F]:
    """Return a decorator that adds flags to a command."""

    def decorate(command: F) -> F:
        for option in reversed([*options]):
            # kube-proxy's only short flag.
            names = ("-v", option.name) if option.name == "--v" else (option.name,)
            command = click.option(*names, **option.attributes)(command)
        return command

    return decorate


def pick(options: Iterable[Option], *flags: str) -> tuple[Option, ...]:
    """Return the options of some flags, in the order of ``flags``."""
    by_flag = {option.flag: option for option in options}
    return tuple(by_flag[flag] for flag in flags)


def command_line(
    options: Iterable[Option],
    values: Mapping[str, Any],
    *,
    file: Path | None = None,
    master: str = "",
) -> CommandLine:
    """Return the given flags. ``values``: of the options, by their parameters."""
    known = [*options]
    flags = [
        (option, Flag(option.flag, path, value))
        for option in known
        if (value := option.value(values)) is not None
        for path in option.fields or [()]
    ]
    return CommandLine(
        file=file,
        master=master,
        kubeproxy=tuple(flag for option, flag in flags if option.of_kubeproxy and flag.path),
        bpfsvc=tuple(flag for option, flag in flags if not option.of_kubeproxy),
        ignored=tuple(flag.name for _, flag in flags if not flag.path),
        names={
            path: option.flag for option in known if option.of_kubeproxy for path in option.fields
        },
    )
