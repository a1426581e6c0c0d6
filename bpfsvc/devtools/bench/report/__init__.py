"""Reports of one run: on the terminal, as CSV, as a page, as Markdown for the documentation.

All are made from the same tables and aims, so they cannot disagree; their date is that of the
run, so the same results give the same text. matplotlib is imported when a page is made and not
before.
"""

from __future__ import annotations

import importlib.util

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.report.documents import html_page, markdown
from bpfsvc.devtools.bench.report.sheet import csv
from bpfsvc.devtools.bench.report.terminal import terminal
from bpfsvc.devtools.bench.results import Results

__all__ = ["check_plotting", "csv", "html", "markdown", "terminal"]


class NoPage(BpfsvcError):
    """The library that draws is not installed."""


def check_plotting() -> None:
    """Raise :class:`NoPage` unless the library that draws is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPage(
            "the page needs a library that is not here: matplotlib", "pip install 'bpfsvc[bench]'"
        )


def html(results: Results) -> str:
    """Return the page with all tables and plots; it needs no other file. Raises NoPage."""
    check_plotting()
    from bpfsvc.devtools.bench.report.plots import opening, plots

    return html_page(results, opening(results), plots(results))
