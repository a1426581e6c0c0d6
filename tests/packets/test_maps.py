"""Writing entries to maps and deleting them."""

from __future__ import annotations

import pytest

from bpfsvc.services.registry import ENDPOINTS, EndpointEntry
from tests.packets.node import Node


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50, 3000])
def test_every_entry_that_is_to_be_deleted_is_deleted(node: Node, count: int) -> None:
    found = node.pinned.map("node_addresses")
    keys = [number.to_bytes(16, "big") for number in range(count)]
    found.update_many((key, b"\1\0\0\0") for key in keys)
    found.delete_many(keys)
    assert [key for key in keys if found.lookup(key)] == []


ONE, TWO, THREE = (EndpointEntry(number.to_bytes(16, "big"), 80, 6) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("held", "differences"),
    [
        pytest.param([ONE, TWO, TWO], 0, id="as they should be"),
        pytest.param([TWO, ONE, TWO], 0, id="in another order"),
        pytest.param([ONE, TWO], 1, id="one is used more often"),
        pytest.param([ONE, ONE, TWO], 2, id="another one is used twice"),
        pytest.param([TWO, TWO], 1, id="one is missing"),
        pytest.param([ONE, TWO, TWO, THREE], 1, id="one is too many"),
        pytest.param([], 2, id="all are missing"),
    ],
)
def test_endpoints_become_what_they_should_be(
    node: Node, held: list[EndpointEntry], differences: int
) -> None:
    node.tables.set_counts(ENDPOINTS, lambda: held)
    assert node.tables.set_counts(ENDPOINTS, lambda: [ONE, TWO, TWO]) == differences
    entries = dict(node.pinned.map("endpoints").items())
    assert sorted((key[15], uses[0]) for key, uses in entries.items()) == [(1, 1), (2, 2)]
