"""The page of the site about metrics that are recorded, from their families."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry

from bpfsvc.metrics import families
from tests.docs.site.markdown import code, table

_PAGE = """\
From the code: every metric that the agent records, with its labels. [Metrics](../metrics.md) has
those that are read from the kernel at each scrape, too, and says what they tell.

"""


def recorded() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield name, type, labels and description of each family."""
    for name, kind in inspect.getmembers(families, inspect.isclass):
        if kind.__module__ != families.__name__ or name.startswith("_"):
            continue
        made: Any = kind
        for family in vars(made(CollectorRegistry())).values():
            for described in getattr(family, "describe", list)():
                labels = tuple(getattr(family, "_labelnames", ()))
                total = "_total" if described.type == "counter" else ""
                yield described.name + total, described.type, labels, described.documentation


def page() -> str:
    """Return the page."""
    rows = (
        (code(name), kind, ", ".join(map(code, labels)), text)
        for name, kind, labels, text in sorted(recorded())
    )
    return _PAGE + table(("metric", "type", "labels", ""), rows)
