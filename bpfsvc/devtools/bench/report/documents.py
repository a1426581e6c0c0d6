"""The page and the Markdown document, each made from a template beside this file.

``docs/benchmarks.md`` is such a document, made anew from each full run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bpfsvc.devtools.bench.aims import aims
from bpfsvc.devtools.bench.figures import clients_text, services_text
from bpfsvc.devtools.bench.report.losses import LEGEND, all_losses, compared
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import Figure, about, heading, tables
from bpfsvc.devtools.bench.report.text import (
    COMMAND,
    JUDGED,
    METHOD,
    aim_row,
    factor,
    measured,
    remarks,
    setting,
)
from bpfsvc.devtools.bench.results import Results


def html_page(results: Results, opening: Any, plots: Sequence[Any]) -> str:
    """Return the page as HTML, which begins with the plot ``opening``, if it is not None.

    Plots have a title, a text and SVG that is put in as it is.
    """
    first = [opening] if opening else []
    # matplotlib has escaped the texts
    opened, drawings = ([(plot, Markup(plot.svg)) for plot in each] for each in (first, plots))
    return _render("page.html", results, opening=opened, plots=drawings)


def markdown(results: Results) -> str:
    """Return the whole document."""
    return _render("document.md", results).rstrip("\n") + "\n"


def _render(name: str, results: Results, **more: Any) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"plain": _plain, "entry": _entry}
    found = aims(results)
    return templates.get_template(name).render(
        setting=setting(results),
        aims=[(aim, aim_row(aim)) for aim in found],
        reached=sum(aim.reached is True for aim in found),
        missed=sum(aim.reached is False for aim in found),
        unmeasured=sum(aim.reached is None for aim in found),
        losses=[
            {
                "what": f"{heading(loss.cell.suite)}: {about(loss.cell)}",
                "size": services_text(loss.cell.services),
                "clients": clients_text(loss.cell.clients),
                "mode": loss.cell.mode,
                "measured": f"{measured(loss.cell)} {loss.cell.unit}",
                "against": loss.against,
                "ratio": factor(loss.ratio),
            }
            for loss in all_losses(results)
        ],
        compared=compared(results),
        judged=JUDGED,
        legend=LEGEND,
        summary=summary(results),
        tables=tables(results),
        remarks=remarks(results),
        method=METHOD,
        command=COMMAND,
        **more,
    )


def _plain(text: str) -> str:
    """Return text without bars, brackets and line ends that Markdown would interpret."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def _entry(figure: Figure | None) -> str:
    """Return an entry of a table; one that loses is bold."""
    if figure is None:
        return ""
    text = " ".join(filter(None, figure.parts))
    return _plain(f"**{text} {figure.signs}**" if figure.signs else text)
