"""A newer build beside the one in force: what it shares and copies, and must not overlook."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc.datapath import bpf
from bpfsvc.datapath.installation import converter, migrate
from bpfsvc.datapath.layout import Layout, Record
from bpfsvc.datapath.pins import Pinned
from bpfsvc.datapath.source import Source, directory, load
from bpfsvc.lab import sandbox
from tests.packets.node import SIZES, Node, same
from tests.packets.scene import SCENES, Scene

FIELD = ("connections.h", "\t__u8 reply;\n", "\t__u64 mark;\n\t__u8 reply;\n")
"""One more field, before others: every one of them moves."""

FILTER = ("filter.h", " port_filters, 6, 0)", " port_filters, 7, 0)")
"""Another layout of the filter, so that none is shared."""

Edit = tuple[str, str, str]


def build(at: Path, *edits: Edit) -> Source:
    """Give the sources of a build that differs: file, what stands there, and what instead."""
    shutil.copytree(directory(), at)
    for name, old, new in edits:
        text = (at / name).read_text()
        assert text.count(old) == 1
        (at / name).write_text(text.replace(old, new))
    return Source(SIZES, at)


Start = Callable[[Source], Node]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Start nodes, each with a build that is in force."""
    sandbox.require()

    def started(source: Source) -> Node:
        node = Node(sandbox.BPF_ROOT / request.node.name, source)
        request.addfinalizer(node.root.remove)
        request.addfinalizer(lambda: node.pinned.close())
        node.installation.complete()
        return node

    return started


def connect_all(node: Node) -> dict[Scene, str]:
    """Establish a masqueraded connection in every scene; give the clients as backends see them."""
    seen = {}
    for scene in SCENES:
        scene.service(node, [scene.backend], str(scene), masquerade=True)
        seen[scene] = scene.connect(node, scene.stranger, scene.vip, scene.backend)
    return seen


def works(node: Node, scene: Scene, seen: str) -> bool:
    """Whether the connection of a scene is translated both ways."""
    out = node.forward(scene.data(scene.stranger, scene.vip))
    back = node.forward(scene.data(scene.backend, seen))
    return same(out, scene.data(seen, scene.backend)) and same(
        back, scene.data(scene.vip, scene.stranger)
    )


def states(pinned: Pinned, name: str) -> dict[bytes, dict[str, int | bytes]]:
    """Read the rows of connections by the names of their fields."""
    record = pinned.layout.maps[name].value
    return {key: record.unpack(value) for key, value in pinned.map(name).items()}


def map_id(pinned: Pinned, name: str) -> int:
    """Give the kernel's id of a map, the second number of ``struct bpf_map_info``."""
    return int.from_bytes(bpf.info(pinned.map(name).fd, 8)[4:], "little")


def filter_bytes(node: Node) -> set[int]:
    """Give the different bytes that stand in the filter."""
    found = node.pinned.map("port_filters")
    rows = (found.lookup(index.to_bytes(4, "little")) for index in range(found.max_entries))
    return {byte for row in rows for byte in row or b""}


@pytest.mark.slow
def test_connections_of_another_layout_are_taken_over_and_all_else_is_shared(
    start: Start, tmp_path: Path
) -> None:
    node = start(load(SIZES))
    seen = connect_all(node)
    node.half_open(1 << 20)
    begun = {scene: scene.at(scene.stranger, 41000) for scene in SCENES}
    begun_as = {
        scene: scene.begin(node, client, scene.vip, scene.backend)
        for scene, client in begun.items()
    }
    before, known = node.pinned, node.filtered()
    old = {name: states(before, name) for name in ("connections", "new_connections")}
    assert {name: len(rows) for name, rows in old.items()} == {
        "connections": 4 * len(SCENES),
        "new_connections": 4 * len(SCENES),
    }

    node.load(build(tmp_path / "bpf", FIELD))
    assert node.installation.settling
    for name, rows in old.items():
        assert states(node.pinned, name) == {key: {**row, "mark": 0} for key, row in rows.items()}
    own = {"connections", "new_connections", "layout", "steps"}
    for name in node.pinned.layout.maps:
        shared = map_id(node.pinned, name) == map_id(before, name)
        assert shared == (name not in own), name
    assert node.filtered() == known

    assert all(works(node, scene, seen[scene]) for scene in SCENES)
    for scene, client in begun.items():
        comes, goes = scene.proof(client, scene.vip, scene.backend, begun_as[scene])
        assert same(node.forward(comes), goes)
    assert (node.count("new_connections"), node.count("connections")) == (0, 8 * len(SCENES))


def test_connections_that_the_old_programs_noted_to_the_last_are_taken_over(
    start: Start, tmp_path: Path
) -> None:
    """They run until the new ones are attached everywhere, and so write to the old maps."""
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    old = node.pinned
    node.load(load(SIZES))
    new, node.pinned = node.pinned, old
    seen = connect_all(node)
    node.pinned = new
    assert node.count("connections") == 0
    assert filter_bytes(node) == {0}, "nothing was carried over yet"
    node.installation.complete()
    assert filter_bytes(node) == {1}
    assert all(works(node, scene, seen[scene]) for scene in SCENES)


def test_connections_of_a_build_without_such_a_filter_are_not_overlooked(
    start: Start, tmp_path: Path
) -> None:
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    seen = connect_all(node)
    node.load(load(SIZES))
    assert filter_bytes(node) == {1}
    assert all(works(node, scene, seen[scene]) for scene in SCENES)
    node.installation.complete()
    assert all(works(node, scene, seen[scene]) for scene in SCENES)


@pytest.mark.slow
def test_connections_in_a_map_shared_with_a_build_without_such_a_filter_are_not_overlooked(
    start: Start, tmp_path: Path
) -> None:
    """Though there be none yet: the old programs go on writing until they are replaced."""
    node = start(build(tmp_path / "bpf", FILTER))
    old = node.pinned
    node.load(load(SIZES))
    assert not node.installation.settling
    assert filter_bytes(node) == {1}
    new, node.pinned = node.pinned, old
    seen = connect_all(node)
    node.pinned = new
    assert all(works(node, scene, seen[scene]) for scene in SCENES)


def test_a_build_that_takes_over_no_connection_filters_from_the_start(
    start: Start, tmp_path: Path
) -> None:
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    node.load(load(SIZES))
    node.installation.complete()
    assert filter_bytes(node) == {0}
    connect_all(node)
    assert filter_bytes(node) == {0, 1}


@pytest.mark.parametrize("filled", ["connections", "new_connections"])
def test_a_build_that_has_no_filter_at_all_is_treated_the_same(
    node: Node, tcp_scene: Scene, filled: str
) -> None:
    """As before filters were thought of, and with other maps of connections."""
    tcp_scene.service(node, [tcp_scene.backend])
    maps = {
        name: replace(layout, max_entries=1) if name.endswith("connections") else layout
        for name, layout in node.pinned.layout.maps.items()
        if name != "port_filters"
    }
    old = Pinned(node.pinned.directory)
    old.layout = Layout("older", maps)
    migrate(old, node.pinned)
    assert filter_bytes(node) == {0}
    if filled == "connections":
        tcp_scene.connect(node, tcp_scene.client, tcp_scene.vip, tcp_scene.backend)
    else:
        node.half_open(1 << 20)
        tcp_scene.begin(node, tcp_scene.client, tcp_scene.vip, tcp_scene.backend)
    assert node.count(filled) == 2
    migrate(old, node.pinned, only=("connections", "new_connections"))
    old.close()
    assert filter_bytes(node) == {1}


def test_a_row_is_converted_field_by_field() -> None:
    old = Record((("a", "B"), ("", "3x"), ("b", "I"), ("gone", "Q"), ("changed", "H"), ("c", "4s")))
    new = Record(
        (("c", "4s"), ("added", "Q"), ("b", "I"), ("changed", "I"), ("a", "B"), ("", "3x"))
    )
    row = old.pack({"a": 1, "b": 2, "gone": 3, "changed": 4, "c": b"five"})
    convert = converter(old, new)
    assert len(convert(row)) == new.size
    assert new.unpack(convert(row)) == {"c": b"five", "added": 0, "b": 2, "changed": 0, "a": 1}


def test_a_row_of_the_same_layout_stays_as_it_is() -> None:
    record = Record((("a", "B"), ("", "3x"), ("b", "I")))
    assert converter(record, record)(b"\1abc\2\3\4\5") == b"\1abc\2\3\4\5"
