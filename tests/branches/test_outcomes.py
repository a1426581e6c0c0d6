"""Copies of a condition are one condition, however the compiler has put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.datapath.loader.source import directory
from tests.branches.outcomes import Outcome, Sources, coverage, sides
from tests.branches.places import Branch
from tests.branches.report import figures, judge, read_reasons, unseen

EQUAL, ABOVE, AT_LEAST, BITS, UNEQUAL, BELOW, AT_MOST = 0x15, 0x25, 0x35, 0x45, 0x55, 0xA5, 0xB5
BY_REGISTER = 8

SOURCE = """\
static bool first(int a)
{
	if (a > 3)
		return true;
	return false;
}

static inline int
second(int a, int b)
{
	switch (a) {
	case 1:
		return b;
	}
}
"""


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "a.h").write_text(SOURCE)
    return Sources(tmp_path)


def branch(operation: int, number: int = 0) -> Branch:
    return Branch("a.h", 3, 6, operation, number)


@pytest.mark.parametrize(
    ("jump", "other_way"),
    [
        (branch(EQUAL), branch(UNEQUAL)),
        (branch(EQUAL, 6), branch(UNEQUAL, 6)),
        (branch(ABOVE, 3), branch(AT_MOST, 3)),
        (branch(AT_LEAST, 4), branch(BELOW, 4)),
        (branch(ABOVE | BY_REGISTER), branch(AT_MOST | BY_REGISTER)),
        (branch(AT_LEAST | BY_REGISTER), branch(BELOW | BY_REGISTER)),
    ],
)
def test_a_condition_that_is_turned_around_has_the_same_sides(
    jump: Branch, other_way: Branch
) -> None:
    assert sides(jump) == sides(other_way)[::-1]
    assert len(set(sides(jump))) == 2


def test_a_limit_may_be_written_in_two_ways() -> None:
    assert sides(branch(ABOVE, 3)) == sides(branch(AT_LEAST, 4)) == ("less", "more")
    assert sides(branch(BITS, 1)) == ("no bit", "a bit")


def test_an_outcome_is_seen_if_any_copy_has_seen_it() -> None:
    zero, other = (Outcome("a.h", 3, 6, 0, side) for side in ("zero", "not zero"))
    marks: list[Outcome | None] = [zero, other, other, zero]
    assert coverage(marks, {0}, {0, 1, 2, 3}, set()).unseen == {other}
    assert coverage(marks, {0, 2}, {0, 1, 2, 3}, set()).unseen == set()


def test_only_what_the_verifier_has_removed_from_every_copy_is_impossible() -> None:
    zero, other = (Outcome("a.h", 3, 6, 0, side) for side in ("zero", "not zero"))
    marks: list[Outcome | None] = [zero, other, other, zero]
    of_run = coverage(marks, {0}, {0, 2, 3}, {1})
    assert (set(of_run.unseen), set(of_run.impossible)) == ({other}, set())
    of_run = coverage(marks, {0}, {0, 3}, {1, 2})
    assert (set(of_run.unseen), set(of_run.impossible)) == (set(), {other})
    assert (of_run.raw_seen, of_run.raw_kept, of_run.raw_impossible) == (1, 2, 2)


def test_conditions_are_named_by_function_and_text(sources: Sources) -> None:
    outcome = Outcome("a.h", 3, 6, 0, "more")
    assert (sources.function(outcome), sources.text(outcome)) == ("first", "if (¦a > 3)")
    assert sources.function(Outcome("a.h", 11, 2, 1, "equal")) == "second"
    assert sources.is_switch("a.h", 11, 2)
    assert not sources.is_switch("a.h", 3, 2)


def test_a_reason_excuses_its_outcome_only_and_is_named_when_nothing_needs_it(
    sources: Sources,
) -> None:
    more, less = (Outcome("a.h", 3, 6, 0, side) for side in ("more", "less"))
    of_run = coverage([more, less], set(), {0, 1}, set())
    reasons = {("first", "if (¦a > 3)", "more"): "never", ("first", "gone", "less"): "never"}
    judged = judge(of_run, sources, reasons)
    assert judged.excused == {more: "never"}
    assert judged.missed == [less]
    assert judged.stale == [("first", "gone", "less")]
    assert unseen(judged, sources) == "* `a.h:3`, `first`, less: `if (¦a > 3)`"
    assert "| a.h | 0 | 1 | 1 |" in figures(of_run, judged)


def test_each_reason_is_of_a_line_of_the_sources() -> None:
    lines = {
        line.strip().replace("\t", " ")
        for file in directory().rglob("*.[ch]")
        for line in file.read_text().splitlines()
    }
    texts = {text.replace("¦", "") for _, text, _ in read_reasons()}
    assert texts <= lines
