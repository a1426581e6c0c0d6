"""Plain values made to fit a typed document, with every field that does not fit named at once.

msgspec stops at the first wrong field and ignores unknown fields. A user of a configuration file
needs all wrong and unknown fields, each with its path. So this module walks through the document,
and msgspec converts one field at a time.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.config.durations import Duration, parse

ZERO_COUNTS = msgspec.Meta(extra={"zero counts": True})
"""Marks a field where zero in a file is a value; elsewhere kube-proxy uses the default then."""


class Shape(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A document, or an object inside one. Defaults of the fields are the program's defaults."""


S = TypeVar("S", bound=Shape)


class FieldError(NamedTuple):
    """A field that cannot be used, and the reason."""

    path: FieldPath
    reason: str


class Flag(NamedTuple):
    """A flag that was given, with the field it sets and the value as a file would hold it."""

    name: str
    path: FieldPath
    value: Any


class Findings:
    """Unknown fields and wrong fields of one document."""

    def __init__(self) -> None:
        self.unknown: list[FieldPath] = []
        self.errors: list[FieldError] = []


def overlay(fields: Mapping[str, Any], flags: tuple[Flag, ...]) -> dict[str, Any]:
    """Return the fields of a document with the values of flags in place of its own."""
    result = dict(fields)
    for flag in flags:
        level: dict[str, Any] = result
        *outer, name = map(str, flag.path)
        for step in outer:
            inner = level.get(step)
            level[step] = dict(inner) if isinstance(inner, Mapping) else {}
            level = level[step]
        level[name] = flag.value
    return result


def fit(
    raw: object,
    shape: type[S],
    findings: Findings,
    from_flags: Container[FieldPath] | None = None,
    path: FieldPath = (),
) -> S:
    """Return ``raw`` as a ``shape``. Add what does not fit to ``findings``; it has its default.

    ``null`` means the default. ``from_flags``: the fields that flags have set; given, zero means
    the default too, except in these fields and in those marked with ``ZERO_COUNTS``. ``path`` is
    where ``raw`` is in its document.
    """
    if not isinstance(raw, Mapping):
        findings.errors.append(FieldError(path, f"expected an object, got {_type_name(raw)}"))
        return shape()
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        here = (*path, name)
        if name not in fields:
            findings.unknown.append(here)
        elif value is not None:
            kind = fields[name].type
            if isinstance(kind, type) and issubclass(kind, Shape):
                values[fields[name].name] = fit(value, kind, findings, from_flags, here)
                continue
            try:
                converted = msgspec.convert(value, kind, dec_hook=_decode)
            except msgspec.ValidationError as error:
                findings.errors.append(_explained(here, str(error), value))
                continue
            if converted or _zero_counts(kind, here, from_flags):
                values[fields[name].name] = converted
    return shape(**values)


def _zero_counts(kind: Any, path: FieldPath, from_flags: Container[FieldPath] | None) -> bool:
    marked = ZERO_COUNTS in getattr(kind, "__metadata__", ())
    return marked or from_flags is None or path in from_flags


def plain_values(value: Shape) -> dict[str, Any]:
    """Return a document as a file would hold it."""
    plain: dict[str, Any] = msgspec.to_builtins(value, enc_hook=str)
    return plain


def value_at(values: Mapping[str, Any], path: FieldPath) -> Any:
    """Return the value of a field in what :func:`plain_values` returned."""
    value: Any = values
    for step in path:
        value = value[step]
    return value


def _decode(kind: type, value: object) -> Duration:
    if kind is not Duration:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        raise ValueError(f"expected a duration such as 30s, got {value!r}")
    return parse(value)


def _explained(path: FieldPath, sentence: str, value: object) -> FieldError:
    """Take msgspec's sentence apart: ``Expected `str`, got `int` - at `$[2]```."""
    reason, _, location = sentence.partition(" - at ")
    for step in location.strip("`").removeprefix("$").replace("]", "").split("["):
        if step.isdigit() and isinstance(value, list):
            path, value = (*path, int(step)), value[int(step)]
    reason = reason[:1].lower() + reason[1:].replace("`", "").replace(" | null", "")
    if isinstance(value, int | float | str) and repr(value) not in reason:
        reason += f" ({value!r})"
    return FieldError(path, reason)


def _type_name(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else "a bare value"
