"""Reports of one run: on the terminal, as CSV, as a page, as Markdown for the documentation.

All reports are made from the same tables and aims, so they cannot disagree. Their date is the date
of the run, so the same results give the same text. matplotlib is imported when a page is made and
not before.
"""

from __future__ import annotations

import importlib.util

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.report.documents import csv, html_page, markdown
from bpfsvc.devtools.bench.report.terminal import terminal
from bpfsvc.devtools.bench.results import Results

__all__ = ["check_plotting", "csv", "html", "markdown", "terminal"]


def check_plotting() -> None:
    """Raise :class:`BpfsvcError` unless the library that draws is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BpfsvcError(
            "the page needs a library that is not here: matplotlib", "pip install 'bpfsvc[bench]'"
        )


def html(results: Results) -> str:
    """Return the page with all tables and plots; it needs no other file."""
    check_plotting()
    from bpfsvc.devtools.bench.report.plots import plots

    return html_page(results, plots(results))
