"""Values of flags as Go programs take them, for arguments that were written for one.

``-v=2`` and ``--masquerade-all=false`` are ordinary there. A switch takes its value behind ``=``
only; where nothing stands behind it, it is true.
"""

from __future__ import annotations

from typing import Any

import click

from bpfsvc.settings import durations

_WORDS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class _Value(click.ParamType[Any]):
    """A text without the ``=`` that a short flag leaves before it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, if it is not read yet."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value.removeprefix("="))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def read(self, text: str) -> Any:
        """Read the text; ``ValueError`` for what is none."""
        return text


class Text(_Value):
    """Any text. ``name`` stands for it in the help."""

    name = "text"

    def __init__(self, name: str = name) -> None:
        self.name = name


class Bool(_Value):
    """A truth value."""

    name = "bool"

    def read(self, text: str) -> bool:
        """Take Go's words for it."""
        if text not in _WORDS:
            raise ValueError(f"{text!r} is not true or false")
        return _WORDS[text]


class Int(_Value):
    """A whole number."""

    name = "number"

    def read(self, text: str) -> int:
        """Read it as it stands."""
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not a whole number") from error


class Span(_Value):
    """A duration; its text, once it is known to be one."""

    name = "duration"

    def read(self, text: str) -> str:
        """Give the text."""
        return str(durations.parse(text))


class Gates(_Value):
    """``NAME=true,NAME=false``, as a mapping."""

    name = "name=bool,..."

    def read(self, text: str) -> dict[str, bool]:
        """Take the pairs apart."""
        pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        for name, _, value in pairs:
            if value.strip() not in _WORDS:
                raise ValueError(f"{name}={value} is not NAME=true or NAME=false")
        return {name.strip(): _WORDS[value.strip()] for name, _, value in pairs}


class Words(_Value):
    """Texts with commas between them."""

    name = "text,..."

    def __init__(self, name: str = name) -> None:
        self.name = name

    def read(self, text: str) -> tuple[str, ...]:
        """Take them apart."""
        return tuple(part.strip() for part in text.split(",") if part.strip())


class Numbers(Words):
    """Whole numbers with commas between them."""

    def read(self, text: str) -> tuple[Any, ...]:
        """Take them apart."""
        return tuple(Int().read(part) for part in super().read(text))
