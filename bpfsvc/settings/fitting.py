"""Plain values made to fit a shape, with everything that does not fit named at once.

msgspec stops at the first field that is wrong and passes over those it does not know; of a file of
settings all of them are wanted, each with its path. So the walk through the shape is done here, and
msgspec decides about one field at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from bpfsvc.settings.durations import Duration, parse
from bpfsvc.settings.shape import Shape
from bpfsvc.sources.yamltext import Path

S = TypeVar("S", bound=Shape)


class Problem(NamedTuple):
    """A field that cannot be used, and why."""

    path: Path
    reason: str


class Findings:
    """What was noticed on the way: fields that nobody knows, and fields that are wrong."""

    def __init__(self) -> None:
        self.unknown: list[Path] = []
        self.problems: list[Problem] = []

    def refuse(self, path: Path, reason: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(path, reason))


def fit(raw: object, shape: type[S], found: Findings, path: Path = ()) -> S:
    """Give ``raw`` the shape; what does not fit is noted, and has its default then.

    ``null`` is as good as nothing at all.
    """
    if not isinstance(raw, Mapping):
        found.refuse(path, f"expected an object, got {_type_name(raw)}")
        return shape()
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    given: dict[str, Any] = {}
    for name, value in raw.items():
        here = (*path, name)
        if name not in fields:
            found.unknown.append(here)
        elif value is not None:
            field = fields[name]
            if isinstance(field.type, type) and issubclass(field.type, Shape):
                given[field.name] = fit(value, field.type, found, here)
                continue
            try:
                given[field.name] = msgspec.convert(value, field.type, dec_hook=_decode)
            except msgspec.ValidationError as error:
                found.refuse(*_explained(here, str(error), value))
    return shape(**given)


def plain_values(value: Shape) -> dict[str, Any]:
    """Give what a shape holds as it would stand in a file."""
    plain: dict[str, Any] = msgspec.to_builtins(value, enc_hook=str)
    return plain


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Give ``below`` with the fields of ``above`` in place of its own, level by level."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        merged[name] = overlaid(under, value) if both and under is not None else value
    return merged


def _decode(kind: type, value: object) -> Duration:
    if kind is not Duration:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        raise ValueError(f"expected a duration such as 30s, got {value!r}")
    return parse(value)


def _explained(path: Path, sentence: str, value: object) -> Problem:
    """Take msgspec's sentence apart: ``Expected `str`, got `int` - at `$[2]```."""
    reason, _, place = sentence.partition(" - at ")
    for step in place.strip("`").removeprefix("$").replace("]", "").split("["):
        if step.isdigit() and isinstance(value, list):
            path, value = (*path, int(step)), value[int(step)]
    reason = reason[:1].lower() + reason[1:].replace("`", "").replace(" | null", "")
    if isinstance(value, int | float | str) and repr(value) not in reason:
        reason += f" ({value!r})"
    return Problem(path, reason)


def _type_name(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else "a bare value"
