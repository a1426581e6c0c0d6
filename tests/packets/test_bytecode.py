"""Builds that are loaded from a file: they work as compiled ones do, and no other file is loaded.

All builds take the same way into the kernel, so the other packet tests are about it, too; some of
them are repeated here with programs that come from a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import bpfsvc
from bpfsvc.datapath import building, bytecode
from bpfsvc.datapath.bytecode import Bytecode
from bpfsvc.datapath.cache import Cache
from bpfsvc.datapath.installation import install
from bpfsvc.datapath.layout import Layout
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.datapath.source import Source, load
from bpfsvc.errors import SystemUnfit
from bpfsvc.lab import sandbox
from tests.packets import test_collect, test_fragments, test_reject, test_walk
from tests.packets.node import SIZES, Node
from tests.packets.scene import SCENES, Scene
from tests.packets.test_migration import connect_all, map_id, works

SOURCE = load(SIZES)
OLDER = load(replace(SIZES, max_connections=8192))

STRANGER = 65534
"""A user, nobody in particular."""


def never(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the compiler was started")


class CachedNode(Node):
    """A node that looks for its builds in a directory."""

    def __init__(self, directory: Path, cache: Path, source: Source = SOURCE) -> None:
        self.cache = cache
        super().__init__(directory, source)

    def load(self, source: Source) -> None:
        self._take(install(self.root, source, print, self.cache))


def put(cache: Path, source: Source, data: bytes) -> Path:
    """Put a file into a directory as the agent would; give its path."""
    Cache(cache, source.digest, print).write(data)
    return cache / f"{source.digest}.bytecode"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the first boot of a version leaves it."""
    sandbox.require()
    directory = tmp_path_factory.mktemp("var") / "lib" / "cache"
    root = PinRoot(sandbox.BPF_ROOT / "first-boot")
    said: list[str] = []
    install(root, SOURCE, said.append, directory).pinned.close()
    root.remove()
    assert said == []
    return directory


@pytest.fixture(scope="module")
def compiled(cache: Path) -> bytes:
    """What the compiler makes of the sources."""
    (file,) = cache.iterdir()
    return file.read_bytes()


@pytest.fixture(scope="module")
def loaded(cache: Path) -> Iterator[Node]:
    """In place of the node of all packet tests, one that has its programs from a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", never)
        node = CachedNode(sandbox.BPF_ROOT / "cached", cache)
    yield node
    node.pinned.close()
    node.root.remove()


@pytest.mark.parametrize(
    "test",
    [
        test_walk.test_a_pod_reaches_a_backend_and_hears_the_frontend,
        test_walk.test_every_later_packet_is_translated_the_same_way,
        test_reject.test_each_class_of_clients_is_told_or_not,
        test_collect.test_a_live_connection_is_refused,
        test_collect.test_a_whole_batch_is_judged_one_by_one,
    ],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
def test_programs_from_a_file_do_what_compiled_ones_do(
    node: Node, scene: Scene, test: Callable[[Node, Scene], None]
) -> None:
    test(node, scene)


def test_fragments_meet_programs_from_a_file(node: Node, udp_scene: Scene) -> None:
    test_fragments.test_a_fragmented_datagram_opens_a_connection(node, udp_scene)


class Place:
    """A directory with the right file, the pins of a node, and what installing there says."""

    def __init__(self, directory: Path, root: PinRoot, compiled: bytes) -> None:
        self.file = put(directory, SOURCE, compiled)
        self.root = root
        self.compiled = compiled
        self.build = Bytecode.decode(compiled, SOURCE.digest)
        self.compilations = 0
        self.said: list[str] = []

    def install(self) -> None:
        """Install as the first boot does; the compiler, if it is asked, has the answer ready."""
        self.said.clear()
        self.compilations = 0
        install(self.root, SOURCE, self.said.append, self.file.parent).pinned.close()
        self.root.remove()

    def compile_source(self, _source: Source) -> bytes:
        """Stand in for the compiler."""
        self.compilations += 1
        return self.compiled


@pytest.fixture
def place(compiled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path / "cache", PinRoot(sandbox.BPF_ROOT / tmp_path.name), compiled)
    monkeypatch.setattr(building, "compile_source", place.compile_source)
    yield place
    place.root.remove()


def test_the_compiler_is_started_once_and_for_all(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first boot has compiled is there for the second, and for root only."""
    monkeypatch.setattr(subprocess, "run", never)
    root = PinRoot(sandbox.BPF_ROOT / "second-boot")
    said: list[str] = []
    install(root, SOURCE, said.append, cache).pinned.close()
    root.remove()
    assert said == []
    (file,) = cache.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (f"{SOURCE.digest}.bytecode", 0o600)
    assert "bcc" not in sys.modules


def test_without_a_directory_nothing_is_kept_or_looked_for(place: Place) -> None:
    place.file.unlink()
    install(place.root, SOURCE, place.said.append).pinned.close()
    assert (place.compilations, place.said) == (1, [])
    assert list(place.file.parent.iterdir()) == []


def damaged(place: Place) -> None:
    """One bit is another."""
    data = bytearray(place.compiled)
    data[len(data) // 2] ^= 1
    put(place.file.parent, SOURCE, bytes(data))


def cut(place: Place) -> None:
    """The end is missing."""
    put(place.file.parent, SOURCE, place.compiled[:-1000])


def empty(place: Place) -> None:
    """Nothing is in it."""
    put(place.file.parent, SOURCE, b"")


def of_another_kernel(place: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "kernel", lambda: ["6.1.0"])
        put(place.file.parent, SOURCE, place.build.encode())


def of_another_version(place: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "VERSION", [0, bpfsvc.__version__])
        put(place.file.parent, SOURCE, place.build.encode())


def of_another_build(place: Place) -> None:
    another = replace(place.build, layout=Layout("another", place.build.layout.maps))
    put(place.file.parent, SOURCE, another.encode())


def refused(place: Place) -> None:
    """The kernel does not take one of the programs."""
    put(place.file.parent, SOURCE, spoilt(place.build))


def of_a_stranger(place: Place) -> None:
    os.chown(place.file, STRANGER, 0)


def open_to_a_group(place: Place) -> None:
    place.file.chmod(0o660)


def open_to_all(place: Place) -> None:
    place.file.chmod(0o602)


def a_link(place: Place) -> None:
    """It leads to a good file."""
    elsewhere = place.file.rename(place.file.parent.parent / "elsewhere")
    place.file.symlink_to(elsewhere)


def spoilt(build: Bytecode) -> bytes:
    """Let a program begin with an instruction that no verifier takes."""
    programs = (
        replace(one, code=bytes(8) + one.code[8:]) if one.name == "collect" else one
        for one in build.programs
    )
    return replace(build, programs=tuple(programs)).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "is damaged"),
        (cut, "is damaged"),
        (empty, "is damaged"),
        (of_another_kernel, "is of another kernel or machine"),
        (of_another_version, "was written by another version of bpfsvc"),
        (of_another_build, "is of another build"),
        (refused, "does not load: this kernel"),
        (of_a_stranger, "could have been written by others"),
        (open_to_a_group, "could have been written by others"),
        (open_to_all, "could have been written by others"),
        (a_link, "cannot be read: "),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_file_that_cannot_be_used_is_replaced_and_that_is_told_in_one_line(
    place: Place, change: Callable[[Place], None], reason: str
) -> None:
    change(place)
    place.install()
    (line,) = place.said
    assert line.startswith(f"compiling anew: {place.file} {reason}")
    assert "\n" not in line
    assert place.compilations == 1
    assert place.file.read_bytes() == place.compiled


@pytest.mark.parametrize("which", ["itself", "above"])
def test_a_directory_that_others_may_write_to_is_left_alone(place: Place, which: str) -> None:
    """Whoever may rename what is in it may put in what they like."""
    directory = place.file.parent if which == "itself" else place.file.parent.parent
    directory.chmod(0o777)
    place.file.write_bytes(b"theirs")
    place.install()
    assert place.said == [f"compiled programs are not kept: others may write to {directory}"]
    assert place.compilations == 1
    assert place.file.read_bytes() == b"theirs"


def test_above_it_a_directory_may_be_everybodys_if_it_is_sticky(place: Place) -> None:
    """As /tmp is: there nobody can take away what is another's."""
    place.file.parent.parent.chmod(0o1777)
    place.install()
    assert (place.compilations, place.said) == (0, [])


@pytest.mark.parametrize("below", [".", "cache"])
def test_a_file_in_place_of_the_directory_is_told_and_no_obstacle(place: Place, below: str) -> None:
    """Or in place of one above it."""
    obstacle = place.file.parent.with_name("obstacle")
    obstacle.write_text("in the way")
    place.file = obstacle / below / place.file.name
    place.install()
    (line,) = place.said
    assert line.startswith(f"compiled programs are not kept: {obstacle}")
    assert place.compilations == 1


def test_what_the_kernel_refuses_is_not_kept(place: Place) -> None:
    """The error is that of the program which was compiled just now, and no pins are left."""
    place.file.unlink()
    place.compiled = spoilt(place.build)
    with pytest.raises(SystemUnfit, match=r"refuses the program collect: .*Invalid argument"):
        place.install()
    assert not place.file.exists()
    assert not place.root.next.exists()


def test_builds_of_long_ago_are_thrown_away(place: Place) -> None:
    """Three are kept: one may go back to the version before, and forth again."""
    for number in range(4):
        put(place.file.parent, load(replace(SIZES, max_services=number + 1)), b"")
    names = {file.name for file in place.file.parent.iterdir()}
    assert len(names) == 3
    assert place.file.name not in names


def test_an_upgrade_from_a_file_takes_over_connections_and_shares_other_maps(
    compiled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older build differs in the size of one map, which the programs do not look at."""
    monkeypatch.setattr(subprocess, "run", never)
    build = Bytecode.decode(compiled, SOURCE.digest)
    wider = replace(build.layout.maps["connections"], max_entries=8192)
    maps = {**build.layout.maps, "connections": wider}
    put(tmp_path, OLDER, replace(build, layout=Layout(OLDER.digest, maps)).encode())
    put(tmp_path, SOURCE, compiled)
    node = CachedNode(sandbox.BPF_ROOT / "upgraded", tmp_path, OLDER)
    try:
        node.installation.complete()
        seen = connect_all(node)
        before = node.pinned
        node.load(SOURCE)
        assert node.installation.settling
        assert (node.count("connections"), before.layout.digest) == (4 * len(SCENES), OLDER.digest)
        for name in node.pinned.layout.maps:
            shared = map_id(node.pinned, name) == map_id(before, name)
            assert shared == (name not in {"connections", "layout", "steps"}), name
        assert all(works(node, scene, seen[scene]) for scene in SCENES)
        node.installation.complete()
    finally:
        node.pinned.close()
        node.root.remove()
