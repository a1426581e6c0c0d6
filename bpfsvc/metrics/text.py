"""The text that Prometheus reads (version 0.0.4).

Numbers are written as Go writes them, ``1`` and not ``1.0``: in the label ``le`` of a bucket they
are part of its name, and while a cluster moves from kube-proxy to this agent the buckets of both
are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(Protocol):
    """What the registry gives: all samples of one name."""

    name: str
    type: str
    documentation: str
    samples: list[Any]


def escaped(value: str) -> str:
    """Give the value of a label as it stands between its quotes."""
    return value.translate(_ESCAPED)


def head(name: str, kind: str, documentation: str) -> str:
    """Give the two lines before the samples of a name."""
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def render(families: Iterable[Family]) -> Iterator[str]:
    """Give the text of each family."""
    for family in families:
        # The library leaves the ending of counters to those who write.
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines = [_line(one.name, one.labels, one.value) for one in family.samples]
        yield head(name, family.type, family.documentation) + "".join(lines)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    words = ",".join(f'{key}="{escaped(_bound(key, text))}"' for key, text in labels.items())
    return f"{name}{{{words}}} {number(value)}\n" if words else f"{name} {number(value)}\n"


def _bound(key: str, text: str) -> str:
    return number(float(text)) if key == "le" else text


def number(value: float) -> str:
    """Give a number, whole ones without a point."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
