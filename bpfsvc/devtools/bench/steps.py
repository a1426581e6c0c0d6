"""The parts of a run: steps, each with the time it will take, known before the first begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.baselines import TooSlow
from bpfsvc.devtools.bench.figures import Scale, services_text
from bpfsvc.devtools.bench.results import Results

Report = Callable[[str], None]
"""Shows the user the present state of a step."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run.

    ``about``: in words, for the user. ``seconds``: about how long it takes. ``act`` may report
    details. ``always``: it is done however late it is.
    """

    about: str
    seconds: float
    act: Callable[[Report], None]
    always: bool = False


class SlowModes:
    """Modes that took too long with some size of cluster: larger clusters are not tried."""

    def __init__(self) -> None:
        self._smallest: dict[str, int] = {}
        """By mode, the smallest cluster that took it too long."""

    @contextmanager
    def watch(self, mode: str, services: int) -> Iterator[None]:
        """Set a mode up within. Raises BpfsvcError if it was too slow with as few Services."""
        known = self._smallest.get(mode, services + 1)
        if services >= known:
            raise BpfsvcError(f"not tried: {services_text(known)} took too long already")
        try:
            yield
        except TooSlow:
            self._smallest[mode] = services
            raise


@dataclass(frozen=True, slots=True)
class Context:
    """What all suites of a run need.

    ``modes``: the modes that can run here. ``kube_proxy``: the program, if there is one.
    """

    scale: Scale
    modes: Sequence[str]
    results: Results
    kube_proxy: Path | None = None
    slow: SlowModes = field(default_factory=SlowModes)
