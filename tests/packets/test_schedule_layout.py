"""The agent and the programs mean the same by schedules and by the entries of their tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.services.scheduling.constants import CONSTANTS, ENUMS
from bpfsvc.services.scheduling.extra import extra_entries
from tests.packets.node import Node


def test_the_programs_have_the_same_constants(node: Node) -> None:
    constants = node.pinned.layout.constants
    assert {name: constants.get(name) for name in CONSTANTS} == CONSTANTS
    for prefix, enum in ENUMS.items():
        known = {item.value: item.name.lower() for item in enum}
        assert node.pinned.layout.constants_named(prefix) == known


def test_other_constants_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = node.pinned.layout
    monkeypatch.setattr(
        node.pinned, "layout", replace(layout, constants={**layout.constants, "SCHEDULE_LC": 6})
    )
    with pytest.raises(KernelError, match="SCHEDULE_LC of the kernel programs is 6; expected 7"):
        ServiceMaps(node.pinned)


def test_an_entry_of_a_table_has_as_many_places(node: Node) -> None:
    ((_, _, places),) = extra_entries(((0, bytes(2)),))["schedule_tables"]
    assert node.pinned.layout.maps["schedule_tables"].value.size == len(places)
