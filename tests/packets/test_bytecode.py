"""Builds that are loaded from a file work like compiled ones, and no bad file is loaded.

All builds are loaded by the same code, so the other packet tests cover it too; what matters most is
repeated here with programs from a file.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.devtools.lab import sandbox
from tests.packets.builds import connect_all, map_id, works
from tests.packets.cached_node import OLDER, SOURCE, CachedNode, never, put
from tests.packets.fragment import PAYLOAD
from tests.packets.fragment import cut as fragments
from tests.packets.node import Node
from tests.packets.packet import same, udp
from tests.packets.peers import ALL_PEERS, Peers
from tests.packets.refusals import refused as is_refused
from tests.packets.test_gc_program import established

STACK, ADD = 10, 0x07
"""The register of the stack, and the instruction by which its addresses are calculated."""


@pytest.fixture(scope="module")
def loaded(compiled: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with programs from a file, instead of the node of all packet tests."""
    cache = put(tmp_path_factory.mktemp("cache"), SOURCE, compiled).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", never)
        node = CachedNode(sandbox.BPF_ROOT / "cached", cache)
    yield node
    node.pinned.close()
    node.root.remove()


@pytest.mark.slow
def test_programs_from_a_file_translate_a_connection_both_ways(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    out = node.forward(peers.data(peers.client, peers.vip))
    assert same(out, peers.data(peers.client, peers.backend))
    back = node.forward(peers.data(peers.backend, peers.client))
    assert same(back, peers.data(peers.vip, peers.client))


def test_programs_from_a_file_refuse_clients_of_a_service_without_endpoints(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [])
    assert is_refused(node, peers.opening(peers.client, peers.vip))


def test_programs_from_a_file_remove_idle_connections_and_keep_live_ones(
    node: Node, peers: Peers
) -> None:
    flow = established(node, peers)
    assert (node.collect(flow), node.count("connections")) == (0, 2)
    node.age(7)
    assert (node.collect(flow), node.count("connections")) == (1, 0)


def test_programs_from_a_file_translate_fragments(node: Node, udp_peers: Peers) -> None:
    udp_peers.service(node, [udp_peers.backend])
    sent = fragments(udp(udp_peers.client, udp_peers.vip, PAYLOAD))
    out = [node.forward(packet) for packet in sent]
    wanted = fragments(udp(udp_peers.client, udp_peers.backend, PAYLOAD))
    assert [bytes(one) for one in out] == [bytes(entry) for entry in wanted]


def stack(code: bytes) -> int:
    """Return how many bytes of the stack instructions use: the lowest address below register 10."""
    lowest = 0
    for operation, registers, offset, number in struct.iter_unpack("=BBhi", code):
        stores, loads = operation & 7 in (2, 3), operation & 7 == 1
        if (stores and registers & 15 == STACK) or (loads and registers >> 4 == STACK):
            lowest = min(lowest, offset)
        elif operation == ADD and number >= -512:
            lowest = min(lowest, number)
    return -lowest


def test_a_program_and_its_subprograms_fit_on_the_stack_of_linux_6_1(compiled: bytes) -> None:
    """That takes 32 bytes at a time of 512, newer ones 16."""
    build = Bytecode.decode(compiled, SOURCE.code_digest)
    together = {}
    for program in build.programs:
        starts = [0, *(at for at, _ in program.subprograms), len(program.code)]
        own, *called = (-stack(program.code[a:b]) // 32 * -32 for a, b in pairwise(starts))
        if called:
            together[program.name] = own + max(called)
    calls = {"connect4", "connect6", "sendmsg4", "sendmsg6"}
    assert set(together) == {*calls, "explain", "gc", "dropped"}
    assert not {name: size for name, size in together.items() if size > 512}


RESIZED = ("connections", "closed_flows", "time_wait_flows")
"""Maps whose size follows the number of connections."""


def test_an_upgrade_from_a_file_takes_over_connections_and_shares_other_maps(
    compiled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older build differs in the size of one map. Both are loaded from one file."""
    monkeypatch.setattr(subprocess, "run", never)
    put(tmp_path, SOURCE, compiled)
    node = CachedNode(sandbox.BPF_ROOT / "upgraded", tmp_path, OLDER)
    try:
        node.installation.complete()
        seen = connect_all(node)
        before = node.pinned
        node.load(SOURCE)
        assert node.installation.copies_connections
        assert (node.count("connections"), before.layout.digest) == (
            4 * len(ALL_PEERS),
            OLDER.digest,
        )
        for name in node.pinned.layout.maps:
            shared = map_id(node.pinned, name) == map_id(before, name)
            assert shared == (
                name not in {*RESIZED, "new_connections", "layout", "steps", "settings"}
            ), name
        assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)
        node.installation.complete()
    finally:
        node.pinned.close()
        node.root.remove()
