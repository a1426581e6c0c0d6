"""What a run says: a failure as a test that is ready to be kept, and the figures of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from tests.docs.figures import measured, read_section, write_section
from tests.fuzz.events import Event, Packet
from tests.fuzz.run import Failure, Result

_COMMAND = "make fuzz"
_TOTAL = re.compile(
    r"the programs (?P<digest>[0-9a-f]+):\n"
    r"(?P<runs>[\d,]+) program runs, of the seeds (?P<seeds>[\d, ]+)\."
)
_LEFT_OUT = """\
Left out: sockets, weights, clients on the node, fragments with other extension headers or of SCTP,
full tables, several CPUs at the same moment; during an upgrade, connections from a port that was
used before, and those of netfilter. The middle of a connection to a port of a cluster IP that is no
frontend may pass. Netfilter is not part of it: the model says what is established there."""


def as_test(failure: Failure) -> str:
    """Return a test function for ``tests/fuzz/test_histories.py`` that plays a failure."""
    lines = [f"    # {line}" for line in _wrapped(failure.text)]
    events = "".join(f"            {_as_code(event)},\n" for event in failure.events)
    return (
        f"def test_history_{failure.seed}(player: Player) -> None:\n"
        + "\n".join(lines)
        + f"\n    player.begin({failure.seed})\n    player.play(\n        [\n{events}        ]\n"
        "    )\n    player.end()\n"
    )


def _as_code(event: Event) -> str:
    if not isinstance(event, Packet):
        return repr(event)
    fields = (f"{name}={int(value)}" for name, value in event._asdict().items())
    return f"Packet({', '.join(fields)})"


def _wrapped(text: str, width: int = 94) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


def figures(result: Result, seed: int, processes: int) -> str:
    """Return the figures of a run, as lines of Markdown."""
    rate = result.runs / result.seconds if result.seconds else 0
    rows = [
        ("histories", f"{result.histories:,}"),
        ("events", f"{result.events:,}"),
        ("program runs", f"{result.runs:,}"),
        ("program runs a second", f"{rate:,.0f} in {processes} processes"),
        *((name, f"{count:,}") for name, count in sorted(result.seen.items())),
        ("differences from the model", f"{len(result.failures)}"),
    ]
    return measured(f"make fuzz MINUTES={result.seconds / 60:.1f} SEED={seed}", rows)


def write_figures(path: Path, text: str, total: Total) -> None:
    """Write the figures of a run and the total of its programs, and name what runs leave out."""
    write_section(path, _COMMAND, f"{text}\n{total}\n\n{_LEFT_OUT}")


@dataclass(frozen=True, slots=True)
class Total:
    """Program runs without a difference of the programs with one digest, in several runs.

    ``seeds`` are those of the runs: a seed that is played again adds nothing.
    """

    digest: str
    runs: int = 0
    seeds: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path, digest: str) -> Total:
        """Return the total in a document; of other programs it has nothing to say."""
        match = _TOTAL.search(read_section(path, _COMMAND))
        if not match or match["digest"] != digest:
            return cls(digest)
        seeds = tuple(int(seed) for seed in match["seeds"].split(", "))
        return cls(digest, int(match["runs"].replace(",", "")), seeds)

    def with_run(self, seed: int, runs: int) -> Total:
        """Return the total after one more run."""
        if seed in self.seeds:
            return self
        return replace(self, runs=self.runs + runs, seeds=(*self.seeds, seed))

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Without a difference from the model, in all runs of the programs {self.digest}:\n"
            f"{self.runs:,} program runs, of the seeds {seeds}."
        )
