"""Running the tools of a layout in a node, and taking the time of nothing else.

The tools are started by a process that stands in the node beforehand (``processes.tools``), which
also looks at the clock. What they read is with it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bpfsvc.bench.processes.children import Talker, command
from bpfsvc.bench.rivals.balanced import Step
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab.namespace import Namespace

_MORE = 30.0  # seconds that an answer may come after the tools had to end


class RivalFailed(BpfsvcError):
    """A rival's rules could not be written."""


class TooSlow(RivalFailed):
    """A rival's rules were not written within the limit; what of them stands is unknown."""


class Took(NamedTuple):
    """When tools began, and when the last had ended (``CLOCK_MONOTONIC``, seconds)."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long that was."""
        return self.ended - self.began


class Runner:
    """Runs tools in a place, one after the other; it ends with the place."""

    def __init__(self, place: Namespace, mode: str) -> None:
        self._mode = mode
        self._process = Talker(place, f"the process that runs tools of {mode}", command("tools"))

    def take(self, steps: Sequence[Step]) -> None:
        """Have at hand what is to be run next."""
        self._process.ask("take", steps)

    def run(self, limit: float, services: int, *, empty: bool = False) -> Took:
        """Run what was taken; ``empty``: the first tool alone, with nothing to read.

        ``limit`` in seconds, after which it is ``TooSlow`` for so many ``services``.
        ``RivalFailed`` if a tool fails.
        """
        self._process.patience = limit + _MORE
        began, ended, words, status, said = self._process.ask("run", limit, empty)
        if status is None:
            number = "1 Service" if services == 1 else f"{services} Services"
            raise TooSlow(f"{self._mode}: {number} not programmed within {limit:g} s")
        if status:
            # Tools may say a line for each of thousands of rules.
            first = said.strip().partition("\n")[0]
            raise RivalFailed(f"{' '.join(words)} ended with {status}: {first}")
        return Took(began, ended)
