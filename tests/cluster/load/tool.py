"""The load generator as tests use it: its jobs in, the counts out.

It runs anywhere as ``load SECONDS JOB...`` (in a pod, on a node, outside) and prints lines of JSON,
so whatever holds its output (a pod's log, a file) is read here in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.lab import c_program

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))


class NoReport(BpfsvcError):
    """The output of a load holds no counts."""


@dataclass(frozen=True, slots=True)
class Job:
    """``connect``: ``number`` new connections a second; ``hold``, ``keep``: so many that stay.

    Held ones carry a request every 100 ms, kept ones every 5 s. With ``udp`` the same by datagrams.
    """

    kind: Literal["connect", "hold", "keep"]
    protocol: Literal["tcp", "udp"]
    address: str
    port: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind},{self.protocol},{self.address},{self.port},{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What one job did.

    ``ok``: answers; ``failed``: connections that were not made or not answered, datagrams without
    an answer; ``cut``: held connections that broke; ``open``: held ones that have had an answer;
    ``slow``: answers after more than 0.9 s, ``slowest`` the longest in seconds;
    ``failures`` and ``backends``: how often, by reason and by name.
    """

    job: str
    ok: int
    failed: int
    cut: int
    open: int
    slow: int
    slowest: float
    failures: dict[str, int]
    backends: dict[str, int]

    def since(self, before: Counts) -> Counts:
        """Return what was added after ``before``; ``open`` and ``slowest`` are those of now."""
        return Counts(
            job=self.job,
            ok=self.ok - before.ok,
            failed=self.failed - before.failed,
            cut=self.cut - before.cut,
            open=self.open,
            slow=self.slow - before.slow,
            slowest=self.slowest,
            failures=_difference(self.failures, before.failures),
            backends=_difference(self.backends, before.backends),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The latest counts, in the order of the jobs; the first failures of each kind, as text."""

    seconds: float
    ended: bool
    jobs: tuple[Counts, ...]
    events: tuple[str, ...] = field(default=())


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    added = {name: number - before.get(name, 0) for name, number in after.items()}
    return {name: number for name, number in added.items() if number}


def build(directory: Path) -> Path:
    """Compile the program into ``directory`` and return its path.

    ``SystemUnfit`` without a C compiler or its headers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return c_program.build(directory / "load", _SOURCES, "the load generator", "-static")


def command(program: Path | str, seconds: int, jobs: Sequence[Job]) -> list[str]:
    """Return the command line of a load, which ends by itself after so many seconds."""
    return [str(program), str(seconds), *map(str, jobs)]


def read_report(lines: Iterable[str]) -> Report:
    """Return the last report in the output of a load, with all its events.

    An unfinished last line is left out. ``NoReport`` if there is none yet.
    """
    latest: dict[str, Any] | None = None
    events: list[str] = []
    for line in lines:
        if not line.startswith("{") or not line.rstrip().endswith("}"):
            continue
        said = json.loads(line)
        if "event" in said:
            events.append(_event(said))
        else:
            latest = said
    if latest is None:
        raise NoReport("the load has printed no counts yet")
    jobs = tuple(Counts(**job) for job in latest["jobs"])
    return Report(latest["seconds"], latest["ended"], jobs, tuple(events))


def _event(said: dict[str, Any]) -> str:
    """Return one failure as text, for example ``12:04:38.1 (12.1 s) cut: request ECONNRESET``."""
    ends = f"{said.get('client', 'no socket')} to {said.get('backend', 'no backend yet')}"
    return (
        f"{said['time']} ({said['seconds']} s) {said['event']}: {said['reason']} "
        f"after {said['after']} s, {ends}, {said['job']}"
    )
