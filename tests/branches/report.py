"""The figures of a run: by file, what was not seen and why, and Python by room."""

from __future__ import annotations

import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.branches.outcomes import Coverage, Outcome, Sources

REASONS = Path(__file__).with_name("reasons.tsv")
"""Outcomes that no test can see: function, text of the line, side, reason; by tabs."""


Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcomes that were not seen, with a reason and without, and reasons that are for nothing."""

    excused: dict[Outcome, str]
    missed: list[Outcome]
    stale: list[Key]


def read_reasons(path: Path = REASONS) -> dict[Key, str]:
    """Return the reasons by function, text of the line and side."""
    reasons: dict[Key, str] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            function, text, side, reason = line.split("\t")
            reasons[function, text, side] = reason
    return reasons


def judge(coverage: Coverage, sources: Sources, reasons: Mapping[Key, str]) -> Judged:
    """Tell what could have been seen from what could not."""
    excused: dict[Outcome, str] = {}
    missed: list[Outcome] = []
    used: set[Key] = set()
    for outcome in sorted(coverage.unseen):
        key = key_of(outcome, sources)
        if key in reasons:
            excused[outcome] = reasons[key]
            used.add(key)
        else:
            missed.append(outcome)
    return Judged(excused, missed, sorted(set(reasons) - used))


def key_of(outcome: Outcome, sources: Sources) -> Key:
    """Return what names an outcome also when lines are added above it."""
    side = f"{outcome.side} {outcome.number}" if outcome.number else outcome.side
    return sources.function(outcome), sources.text(outcome), side


def figures(coverage: Coverage, judged: Judged) -> str:
    """Return the figures of the C, as lines of Markdown."""
    seen, missed = Counter[str](), Counter[str]()
    excused = Counter(outcome.file for outcome in judged.excused)
    seen.update(outcome.file for outcome in coverage.seen)
    missed.update(outcome.file for outcome in judged.missed)
    lines = ["| file of `bpf/` | outcomes seen | not seen | cannot be |", "|---|---|---|---|"]
    files = {*seen, *missed, *excused}
    complete = sorted(files - {*missed, *excused})
    for file in sorted({*missed, *excused}):
        lines.append(f"| {file} | {seen[file]} | {missed[file] or ''} | {excused[file] or ''} |")
    in_complete = sum(seen[file] for file in complete)
    lines.append(f"| {len(complete)} other files | {in_complete} | | |")
    total = len(coverage.seen) + len(judged.missed)
    lines += [
        f"| **all** | **{len(coverage.seen):,} of {total:,}: {share(len(coverage.seen), total)}** |"
        f" {len(judged.missed)} | {len(judged.excused)} |",
        "",
        f"A condition stands in the programs as often as the compiler puts it there. Of all copies:"
        f" {coverage.raw_seen:,} of {coverage.raw_kept:,} outcomes seen"
        f" ({share(coverage.raw_seen, coverage.raw_kept)}). The verifier has proved another"
        f" {coverage.raw_impossible:,} impossible where they stand, and"
        f" {len(coverage.impossible)} outcomes of the sources in every copy; none of these counts.",
    ]
    return "\n".join(lines)


def excuses(judged: Judged, sources: Sources) -> str:
    """Return the outcomes that cannot be seen, by their reasons, as lines of Markdown."""
    by_reason: dict[str, list[Outcome]] = defaultdict(list)
    for outcome, reason in judged.excused.items():
        by_reason[reason].append(outcome)
    lines: list[str] = []
    for reason, outcomes in sorted(by_reason.items()):
        functions = sorted({f"`{sources.function(outcome)}`" for outcome in outcomes})
        lines.append(f"* {reason} ({len(outcomes)}): {', '.join(functions)}")
    return "\n".join(lines)


def unseen(judged: Judged, sources: Sources) -> str:
    """Return the outcomes that were not seen and could have been, as lines of Markdown."""
    return "\n".join(
        f"* `{outcome.file}:{outcome.line}`, `{sources.function(outcome)}`,"
        f" {key_of(outcome, sources)[2]}: `{sources.text(outcome)}`"
        for outcome in judged.missed
    )


def share(part: int, whole: int) -> str:
    """Return a percentage."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


def rooms(report: Path) -> str:
    """Return the figures of the Python code by room, from the JSON of coverage.py."""
    seen, every = Counter[str](), Counter[str]()
    branches_seen, branches = Counter[str](), Counter[str]()
    for name, file in json.loads(report.read_text())["files"].items():
        parts = Path(name).parts
        room = parts[1] if len(parts) > 2 else "."
        summary = file["summary"]
        for key in (room, "**all**"):
            seen[key] += summary["covered_lines"]
            every[key] += summary["num_statements"]
            branches_seen[key] += summary["covered_branches"]
            branches[key] += summary["num_branches"]
    lines = ["| room of `bpfsvc/` | statements | branches |", "|---|---|---|"]
    for room in sorted(every, key=lambda name: (name == "**all**", name)):
        statements = share(seen[room], every[room])
        lines.append(
            f"| {room} | {seen[room]:,} of {every[room]:,}: {statements} |"
            f" {share(branches_seen[room], branches[room])} |"
        )
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """Return a text of Markdown with lines of at most 100 characters, but for its tables."""
    return "\n".join(
        line
        if line.startswith("|")
        else textwrap.fill(
            line,
            100,
            subsequent_indent="  " if line.startswith("*") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )
