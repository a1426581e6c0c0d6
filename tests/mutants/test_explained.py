"""The reasons are of changes that there are."""

from __future__ import annotations

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.source import load
from tests.mutants.c_changes import Change, changes
from tests.mutants.explained import places, reasons, table


def test_each_reason_is_of_a_change_of_the_sources_as_they_are() -> None:
    assert not table().keys() - places(changes(load(Sizes()).root)).keys()


def test_a_reason_is_of_one_of_several_equal_lines() -> None:
    (place, reason), *_ = table().items()
    change = Change(place.file, 1, f"\t{place.before}", f"\t{place.after}", "")
    assert reasons([change, change._replace(line=2)]) == {change: reason}
