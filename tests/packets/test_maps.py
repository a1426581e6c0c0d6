"""Writing entries to maps and deleting them."""

from __future__ import annotations

import pytest

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.syscall import ANY
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import ENDPOINTS, EndpointEntry
from tests.packets.node import Node


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50, 3000])
def test_every_entry_that_is_to_be_deleted_is_deleted(node: Node, count: int) -> None:
    table = node.pinned.map("node_addresses")
    keys = [number.to_bytes(16, "big") for number in range(count)]
    table.update_many((key, b"\1\0\0\0") for key in keys)
    table.delete_many(keys)
    assert [key for key in keys if table.lookup(key)] == []


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


def endpoints_of(node: Node) -> dict[int, int]:
    """Return by how many service ports each endpoint is used, by the number of its address."""
    items = node.pinned.map("endpoints").items()
    return {int.from_bytes(key[:16], "big"): int.from_bytes(uses, "little") for key, uses in items}


def put(node: Node, *numbers: int) -> None:
    plan = Plan()
    entries = [EndpointEntry(number.to_bytes(16, "big"), 80, 6) for number in numbers]
    plan.puts(ENDPOINTS).extend(entries)
    node.tables.execute(plan)


def test_new_endpoints_are_written_together_and_uses_of_known_ones_are_added(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A use of an endpoint that is written in the same plan, or was before, counts as well."""
    single = []
    update = Map.update

    def noted(self: Map, key: bytes, value: bytes, flags: int = ANY) -> bool:
        if self.name == "endpoints":
            single.append(key)
        return update(self, key, value, flags)

    node.tables.clear()
    first = range(70_000, 70_100)
    monkeypatch.setattr(Map, "update", noted)
    put(node, *first, first[0])
    # Two of a hundred may have the same bit.
    assert len(single) <= 4
    put(node, *first[:5], 80_000)
    assert endpoints_of(node) == (
        {first[0]: 3} | dict.fromkeys(first[1:5], 2) | dict.fromkeys([*first[5:], 80_000], 1)
    )


def test_endpoints_with_the_same_bit_lose_no_uses(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.tables.clear()
    monkeypatch.setattr(Destinations, "index_of", lambda *_: 7)
    put(node, *range(90_000, 90_010), 90_003)
    put(node, 90_003, 90_011)
    expected = dict.fromkeys([*range(90_000, 90_010), 90_011], 1) | {90_003: 3}
    assert endpoints_of(node) == expected
