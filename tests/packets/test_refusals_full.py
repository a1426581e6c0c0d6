"""Refusals where the table of counts of Services has no room: the node counts them all the same."""

from __future__ import annotations

import struct
import time

from bpfsvc.base.errors import MapFull
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.services.entries import Policies
from tests.packets.node import REDIRECT, SHOT, Node
from tests.packets.peers import TCP_PEERS, Peers
from tests.packets.test_connection_limits import LIMIT, Limited
from tests.packets.test_refusals import DROP, REJECT

REFUSALS = {
    "rejected__no_endpoints": Policies(REJECT, REJECT, REJECT),
    "dropped__no_endpoints": Policies(DROP, DROP, DROP),
    "dropped__source_range": None,
    "rejected__backends_full": None,
}


def fill(refusals: Map) -> list[bytes]:
    """Fill the table with counts of other Services; return their keys.

    The kernel has memory for each CPU only a little at a time.
    """
    keys = [struct.pack("=I", 1 << 24 | number) for number in range(refusals.max_entries)]
    refusals.delete_many([key for key, _ in refusals.items()])
    deadline = time.monotonic() + stretched(20)
    for at in range(0, len(keys), 256):
        while True:
            try:
                refusals.update_many(
                    (key, bytes(refusals.value_size)) for key in keys[at : at + 256]
                )
                break
            except MapFull:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    return keys


def refuse(node: Node, peers: Peers, name: str) -> None:
    """Have a Service refuse a packet for a reason."""
    node.remove("web")
    if name == "rejected__backends_full":
        limited = Limited(node, peers)
        limited.write(1)
        limited.put([(LIMIT, 0)])
    elif name == "dropped__source_range":
        peers.service(node, [peers.backend], ranges=["192.0.2.0/24"])
    else:
        peers.service(node, [], frontends=[peers.vip], policies=REFUSALS[name])
    verdict, _ = node.run("ingress", peers.opening(peers.client, peers.vip))
    assert verdict == (SHOT if name.startswith("dropped") else REDIRECT)


def test_without_room_for_the_counts_of_a_service_the_node_counts(node: Node) -> None:
    refusals = node.pinned.map("refusals")
    keys = fill(refusals)
    expected = dict.fromkeys(REFUSALS, 0)
    for name in REFUSALS:
        refuse(node, TCP_PEERS[0], name)
        expected[name] = 1
        assert {name: node.counter(name) for name in REFUSALS} == expected
    assert {key for key, _ in refusals.items()} == set(keys)
    refusals.delete_many(keys)
