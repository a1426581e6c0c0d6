"""The agent and the programs mean the same by schedules and by the entries of their tables."""

from __future__ import annotations

from bpfsvc.services.scheduling.extra import extra_entries
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.node import Node


def test_schedules_have_the_same_numbers(node: Node) -> None:
    known = {one.value: one.name.lower() for one in Schedule}
    assert node.pinned.layout.constants_named("SCHEDULE_") == known


def test_an_entry_of_a_table_has_as_many_places(node: Node) -> None:
    ((_, _, places),) = extra_entries(((0, bytes(2)),))["schedule_tables"]
    assert node.pinned.layout.maps["schedule_tables"].value.size == len(places)
