"""The traffic counters of each backend."""

from __future__ import annotations

import pytest

from bpfsvc.services.plans.registry import BACKENDS
from tests.packets.node import Node
from tests.packets.peers import Peers
from tests.packets.traffic import counted


def traffic(node: Node, backend: int) -> dict[str, int]:
    """Read the counters of the backend in a slot of the only Service, over all CPUs."""
    entry = next(one for one in node.tables.read(BACKENDS) if one.slot == backend)
    return counted(node, entry.counters_id)


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
@pytest.mark.parametrize("slot", [0, 1], ids=["first backend", "second backend"])
def test_connections_packets_and_bytes_of_both_directions_are_counted_once(
    node: Node, peers: Peers, masquerade: bool, slot: int
) -> None:
    peers.service(node, [peers.backend, peers.other_backend], masquerade=masquerade)
    wanted = dict.fromkeys(traffic(node, slot), 0)
    chosen = {0: peers.backend, 1: peers.other_backend}[slot]
    for number in range(40):
        client = peers.with_port(peers.external, 5000 + number)
        out = node.forward(peers.opening(client, peers.vip))
        if out.dst != peers.opening(client, chosen).dst:
            continue
        seen = peers.with_port(out.src, out.payload.sport)
        back = node.forward(peers.answer(chosen, seen))
        more = node.forward(peers.data(client, peers.vip))
        wanted["connections"] += 1
        wanted["packets"] += 2
        wanted["bytes"] += 28 + len(out) + len(more)
        wanted["reply_packets"] += 1
        wanted["reply_bytes"] += 14 + len(back)
    assert wanted["connections"]
    assert traffic(node, slot) == wanted
