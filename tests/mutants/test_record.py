"""What a later run knows of an earlier run, though lines of the sources have moved."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.c_changes import Change
from tests.mutants.record import SURVIVED, Record, identities, sample

FIRST = Change("a.h", 10, "\ta = b + c;", "\ta = b - c;", "+ to -")
SECOND = Change("a.h", 20, "\ta = b + c;", "\ta = b - c;", "+ to -")
MOVED = [FIRST._replace(line=12), SECOND._replace(line=22)]


def test_two_changes_of_the_same_text_have_two_identities() -> None:
    assert len(set(identities([FIRST, SECOND]).values())) == 2


def test_answers_are_known_after_lines_have_moved(tmp_path: Path) -> None:
    file = tmp_path / "build" / "mutants.json"
    killed = {"state": "killed", "by": "a test"}
    Record(file, [FIRST, SECOND]).keep({SECOND: killed, FIRST: {"state": "survived", "seconds": 1}})
    later = Record(file, MOVED).answers(MOVED)
    assert later == {MOVED[1]: killed, MOVED[0]: SURVIVED}


def test_what_was_not_tried_has_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    Record(file, [FIRST]).keep({FIRST: {"state": "survived"}})
    assert list(Record(file, [FIRST, SECOND]).answers([FIRST, SECOND])) == [FIRST]


def test_a_run_leaves_what_earlier_runs_have_noted(tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    for change in (FIRST, SECOND):
        Record(file, [FIRST, SECOND]).keep({change: {"state": "killed"}})
    assert len(Record(file, [FIRST, SECOND]).answers([FIRST, SECOND])) == 2


def test_a_sample_stays_when_a_line_is_added() -> None:
    before = [FIRST._replace(line=line, after=f"\ta = {line};") for line in range(100)]
    after = [FIRST._replace(line=0, after="\tb;"), *before]
    chosen = sample(before, 1, 50)
    assert len(set(chosen) & set(sample(after, 1, 50))) >= 49
    assert set(chosen) != set(sample(before, 2, 50))
