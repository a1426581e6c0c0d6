"""Reports of one run: on the terminal, as CSV, as a page, as Markdown for the documentation.

All are made from the same tables (``tables``) and aims, so they cannot disagree; none holds a date,
so the same results give the same text. What draws is imported when a page is made and not before.
"""

from __future__ import annotations

import importlib.util

from bpfsvc.bench.report.document import markdown
from bpfsvc.bench.report.sheet import csv
from bpfsvc.bench.report.terminal import terminal
from bpfsvc.bench.results import Results
from bpfsvc.errors import BpfsvcError

__all__ = ["check_drawing", "csv", "html", "markdown", "terminal"]


class NoPage(BpfsvcError):
    """The libraries that draw are not installed."""


def check_drawing() -> None:
    """Raise :class:`NoPage` unless the libraries that draw are installed."""
    for name in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise NoPage(
                f"the page needs a library that is not here: {name}", "pip install 'bpfsvc[bench]'"
            )


def html(results: Results) -> str:
    """Give the page with all tables and plots; it needs no other file. Raises NoPage."""
    check_drawing()
    from bpfsvc.bench.report.page import page

    return page(results)
