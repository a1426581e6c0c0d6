"""The page: one file with all tables and plots, nothing in it that is loaded from anywhere."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from bpfsvc.bench import words
from bpfsvc.bench.aims import aims
from bpfsvc.bench.report import aimed
from bpfsvc.bench.report.losses import all_losses, compared, legend
from bpfsvc.bench.report.numbers import factor, measured
from bpfsvc.bench.report.plots import plots
from bpfsvc.bench.report.prose import COMMAND, METHOD, remarks, setting
from bpfsvc.bench.report.tables import about, heading, tables
from bpfsvc.bench.results import Results

_TEMPLATE = "page.html"


def page(results: Results) -> str:
    """Give the page as HTML."""
    surroundings = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found = aims(results)
    return surroundings.get_template(_TEMPLATE).render(
        setting=setting(results),
        reached=sum(aim.reached is True for aim in found),
        missed=sum(aim.reached is False for aim in found),
        unmeasured=sum(aim.reached is None for aim in found),
        aims=[(aim, aimed.row(aim)) for aim in found],
        losses=[
            {
                "what": f"{heading(loss.cell.suite)}: {about(loss.cell)}",
                "size": words.services(loss.cell.services),
                "clients": words.clients(loss.cell.clients),
                "mode": loss.cell.mode,
                "measured": f"{measured(loss.cell)} {loss.cell.unit}",
                "against": loss.against,
                "ratio": factor(loss.ratio),
            }
            for loss in all_losses(results)
        ],
        compared=compared(results),
        judged=aimed.JUDGED,
        legend=legend(),
        tables=tables(results),
        # What matplotlib wrote; the texts in it are escaped by it.
        plots=[(each, Markup(each.svg)) for each in plots(results)],
        remarks=remarks(results),
        method=METHOD,
        command=COMMAND,
    )
