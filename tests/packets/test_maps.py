"""Rows go into maps and out of them."""

from __future__ import annotations

import pytest

from tests.packets.node import Node


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50, 3000])
def test_every_row_that_is_to_be_deleted_is_deleted(node: Node, count: int) -> None:
    found = node.pinned.map("node_addresses")
    keys = [number.to_bytes(16, "big") for number in range(count)]
    found.update_many((key, b"\1\0\0\0") for key in keys)
    found.delete_many(keys)
    assert [key for key in keys if found.lookup(key)] == []
