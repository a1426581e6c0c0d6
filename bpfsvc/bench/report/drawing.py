"""What all plots share: colours, marks, axes, and the way into a page.

The colours are told apart by people who do not see all of them (after Okabe and Ito), and each mode
has a mark of its own as well; what is bpfsvc's is a whole line, all else is broken. Text stays text
in the drawing. The same figures give the same bytes: no date, and names that are counted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bpfsvc.bench.report.numbers import short
from bpfsvc.bench.results import OURS

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "bpfsvc",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
}
SHORT = FuncFormatter(lambda value, _: short(value, trim=True))
"""Round numbers at an axis, with k or M."""
_PANEL = (4.3, 3.1)  # inches
_NAMES = re.compile(r'(\bid="|url\(#|href="#)')
_HEAD = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
_NAMESPACES = re.compile(r' xmlns(:\w+)?="[^"]*"')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)


class Look(NamedTuple):
    """How a mode is drawn."""

    colour: str
    mark: str
    line: str


_LOOKS = {
    "direct": Look("#000000", "|", ":"),
    "iptables": Look("#d55e00", "v", "--"),
    "iptables-nft": Look("#e69f00", "<", "--"),
    "nftables": Look("#cc79a7", "^", "--"),
    "ipvs": Look("#888888", ">", "--"),
    "kube-proxy": Look("#7f5a2b", "x", "--"),
    "tc": Look("#56b4e9", "o", "-"),
    "socket": Look("#0072b2", "s", "-"),
    "fast": Look("#009e73", "D", "-"),
    "xdp": Look("#44217a", "P", "-"),
}
_OTHER = Look("#666666", ".", "-.")


class Plot(NamedTuple):
    """A drawing for a page: a title, what to look at, and SVG without anything from outside."""

    title: str
    about: str
    svg: str


def look(mode: str) -> Look:
    """Give the looks of a mode."""
    return _LOOKS.get(mode, _OTHER)


def weight(mode: str) -> float:
    """Give the width of a mode's line."""
    return 2.0 if mode in OURS else 1.3


class Sheet:
    """A figure with panels side by side, which becomes a plot."""

    def __init__(
        self,
        panels: int,
        *,
        width: float = _PANEL[0],
        height: float = _PANEL[1],
        across: int = 3,
    ) -> None:
        with rc_context(_SETTINGS):
            self.columns = min(panels, across)
            rows = -(-panels // self.columns)
            self._figure = Figure(
                figsize=(width * self.columns, height * rows), layout="constrained"
            )
            grid = self._figure.subplots(rows, self.columns, squeeze=False)
            self.panels: list[Axes] = [axes for row in grid for axes in row][:panels]
            for spare in [axes for row in grid for axes in row][panels:]:
                spare.remove()

    def legend(self) -> None:
        """Name each mode once, below all panels."""
        named: dict[str, Any] = {}
        for panel in self.panels:
            handles, names = panel.get_legend_handles_labels()
            named.update(zip(names, handles, strict=True))
        at_once = max(4, 3 * self.columns)
        if named:
            self._figure.legend(
                named.values(),
                named.keys(),
                loc="outside lower center",
                ncols=min(at_once, len(named)),
                frameon=False,
            )

    def plot(self, title: str, about: str, number: int) -> Plot:
        """Finish; ``number`` tells the names within this drawing from those of others."""
        with rc_context(_SETTINGS):
            written = io.StringIO()
            self._figure.savefig(written, format="svg", metadata={"Date": None})
        return Plot(title, about, _inline(written.getvalue(), f"p{number}-"))


def by_services(panel: Axes, sizes: Sequence[int]) -> None:
    """Give a panel the sizes of cluster as its logarithmic x axis."""
    panel.set_xscale("log")
    panel.set_xticks(list(sizes), [f"{size:,}" for size in sizes])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("Services")


def by_time(panel: Axes) -> None:
    """Give a panel a logarithmic x axis with names at 1, 2 and 5 of each power of ten."""
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(SHORT)
    panel.xaxis.set_minor_formatter(NullFormatter())


def _inline(svg: str, prefix: str) -> str:
    """Take what a page cannot hold off a drawing, and make its names unique there."""
    body = _METADATA.sub("", _HEAD.sub("", svg))
    body = _NAMESPACES.sub("", body, count=2)
    return _NAMES.sub(rf"\g<1>{prefix}", body)
