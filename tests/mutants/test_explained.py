"""The reasons are of changes that there are, and each is given once."""

from __future__ import annotations

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.source import load
from tests.mutants.c_changes import changes
from tests.mutants.explained import explained, place


def test_each_reason_is_of_a_change_of_the_sources_as_they_are() -> None:
    there = {place(change) for change in changes(load(Sizes()).root)}
    assert not explained().keys() - there
