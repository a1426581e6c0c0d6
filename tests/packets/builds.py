"""Builds beside each other, and connections that both know."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.source import CSource, directory
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.lab import sandbox
from tests.packets.node import SIZES, Node
from tests.packets.packet import same
from tests.packets.peers import ALL_PEERS, Peers

Start = Callable[[CSource], Node]
"""Starts a node with an active build."""

FIELD = ("maps/connections.h", "\t__u8 reply;\n", "\t__u64 mark;\n\t__u8 reply;\n")
"""One more field in front of others, so their offsets change."""

FILTER = ("maps/port_filter.h", " port_filters, 6, 0)", " port_filters, 7, 0)")
"""Another layout of the filter, so the builds share none."""

Edit = tuple[str, str, str]


def build(at: Path, *edits: Edit) -> CSource:
    """Return the sources of a build with edits: file, old text, new text."""
    shutil.copytree(directory(), at)
    for name, old, new in edits:
        text = (at / name).read_text()
        assert text.count(old) == 1
        (at / name).write_text(text.replace(old, new))
    return CSource(SIZES, at)


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Return a function that starts nodes, each with an active build."""
    sandbox.require()

    def started(source: CSource) -> Node:
        node = Node(sandbox.BPF_ROOT / request.node.name, source)
        request.addfinalizer(node.root.remove)
        request.addfinalizer(lambda: node.pinned.close())
        node.installation.complete()
        return node

    return started


def connect_all(node: Node) -> dict[Peers, str]:
    """Connect all peers, masqueraded; return each client as its backend sees it."""
    seen = {}
    for peers in ALL_PEERS:
        peers.service(node, [peers.backend], str(peers), masquerade=True)
        seen[peers] = peers.connect(node, peers.external, peers.vip, peers.backend)
    return seen


def works(node: Node, peers: Peers, seen: str) -> bool:
    """True if the connection between these peers is translated both ways."""
    out = node.forward(peers.data(peers.external, peers.vip))
    back = node.forward(peers.data(peers.backend, seen))
    return same(out, peers.data(seen, peers.backend)) and same(
        back, peers.data(peers.vip, peers.external)
    )


def states(pinned: Pinned, name: str) -> dict[bytes, dict[str, int | bytes]]:
    """Read the entries of connections by the names of their fields."""
    record = pinned.layout.maps[name].value
    return {key: record.unpack(value) for key, value in pinned.map(name).items()}


def map_id(pinned: Pinned, name: str) -> int:
    """Return the kernel's id of a map, the second number of ``struct bpf_map_info``."""
    return int.from_bytes(syscall.info(pinned.map(name).fd, 8)[4:], "little")


def filter_bytes(node: Node) -> set[int]:
    """Return the set of bytes in the filter."""
    table = node.pinned.map("port_filters")
    entries = (table.lookup(index.to_bytes(4, "little")) for index in range(table.max_entries))
    return {byte for entry in entries for byte in entry or b""}
