"""The reasons are of changes that there are."""

from __future__ import annotations

from pathlib import Path

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.source import load
from tests.mutants import python_changes
from tests.mutants.__main__ import PACKAGE
from tests.mutants.c_changes import Change, changes
from tests.mutants.explained import C_REASONS, PYTHON_REASONS, explained, places, table


def test_each_reason_is_of_a_change_of_the_sources_as_they_are() -> None:
    assert not table(C_REASONS).keys() - places(changes(load(Sizes()).root)).keys()


def test_each_reason_is_of_a_change_of_the_modules_as_they_are() -> None:
    every = python_changes.changes(Path(), PACKAGE)
    assert not table(PYTHON_REASONS).keys() - places(every).keys()


def test_a_reason_is_of_one_of_several_equal_lines() -> None:
    place, *_ = table(C_REASONS)
    before, after = place.words
    change = Change(place.file, 1, f"\t{before}", f"\t{after}", "")
    both = [change, change._replace(line=2)]
    tried = {changed: {"state": "survived"} for changed in both}
    states = [answer["state"] for _, answer in explained(tried, both, C_REASONS)]
    assert states == ["explained", "survived"]
