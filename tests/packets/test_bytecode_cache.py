"""The directory of compiled programs: its files, and which of them are not trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bpfsvc
from bpfsvc.base.errors import SystemUnfit
from bpfsvc.datapath.loader import builder, bytecode
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.installation import begin_install, install
from bpfsvc.datapath.loader.source import CSource
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab import sandbox
from tests.packets.builds import map_id
from tests.packets.cached_node import SOURCE, never, put

OTHER_USER = 65534
"""Some user id other than root's."""


class Setup:
    """A directory with a good file, a node's pins, and the messages of installing there."""

    def __init__(self, directory: Path, root: PinRoot, compiled: bytes) -> None:
        self.file = put(directory, SOURCE, compiled)
        self.root = root
        self.compiled = compiled
        self.build = Bytecode.decode(compiled, SOURCE.code_digest)
        self.compilations = 0
        self.messages: list[str] = []

    def install(self) -> None:
        """Install as the first boot does; the compiler's result is prepared."""
        self.messages.clear()
        self.compilations = 0
        install(self.root, SOURCE, self.messages.append, self.file.parent).pinned.close()
        self.root.remove()

    def compile_source(self, _source: CSource, _unwanted: object) -> bytes:
        """Return the prepared result instead of compiling."""
        self.compilations += 1
        return self.compiled


@pytest.fixture
def setup(compiled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    setup = Setup(tmp_path / "cache", PinRoot(sandbox.BPF_ROOT / tmp_path.name), compiled)
    monkeypatch.setattr(builder, "compile_source", setup.compile_source)
    yield setup
    setup.root.remove()


@pytest.mark.slow
def test_the_compiler_is_started_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first boot leaves its result for the second, readable by root only."""
    root, cache = PinRoot(sandbox.BPF_ROOT / "booted"), tmp_path / "var" / "lib" / "cache"
    messages: list[str] = []
    for _ in range(2):
        install(root, SOURCE, messages.append, cache).pinned.close()
        root.remove()
        assert messages == []
        monkeypatch.setattr(subprocess, "run", never)
    (file,) = cache.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (f"{SOURCE.code_digest}.bytecode", 0o600)
    assert "bcc" not in sys.modules


def test_without_a_directory_nothing_is_stored_or_read(setup: Setup) -> None:
    setup.file.unlink()
    install(setup.root, SOURCE, setup.messages.append).pinned.close()
    assert (setup.compilations, setup.messages) == (1, [])
    assert list(setup.file.parent.iterdir()) == []


def damaged(setup: Setup) -> None:
    """Flip one bit."""
    data = bytearray(setup.compiled)
    data[len(data) // 2] ^= 1
    put(setup.file.parent, SOURCE, bytes(data))


def truncated(setup: Setup) -> None:
    """Remove the end."""
    put(setup.file.parent, SOURCE, setup.compiled[:-1000])


def empty(setup: Setup) -> None:
    """Write an empty file."""
    put(setup.file.parent, SOURCE, b"")


def of_another_machine(setup: Setup) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "machine", lambda: "big-endian")
        put(setup.file.parent, SOURCE, setup.build.encode())


def of_another_version(setup: Setup) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "VERSION", [0, bpfsvc.__version__])
        put(setup.file.parent, SOURCE, setup.build.encode())


def of_another_build(setup: Setup) -> None:
    another = replace(setup.build, layout=Layout("another", setup.build.layout.maps))
    put(setup.file.parent, SOURCE, another.encode())


def refused(setup: Setup) -> None:
    """Write a build with one program that the kernel refuses."""
    put(setup.file.parent, SOURCE, spoilt(setup.build))


def of_another_user(setup: Setup) -> None:
    os.chown(setup.file, OTHER_USER, 0)


def open_to_a_group(setup: Setup) -> None:
    setup.file.chmod(0o660)


def open_to_all(setup: Setup) -> None:
    setup.file.chmod(0o602)


def a_link(setup: Setup) -> None:
    """Replace the file by a link to a good file."""
    elsewhere = setup.file.rename(setup.file.parent.parent / "elsewhere")
    setup.file.symlink_to(elsewhere)


def spoilt(build: Bytecode, name: str = "gc") -> bytes:
    """Return a build with one program that begins with an instruction that no verifier accepts."""
    programs = (
        replace(program, code=bytes(8) + program.code[8:]) if program.name == name else program
        for program in build.programs
    )
    return replace(build, programs=tuple(programs)).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "is damaged"),
        (truncated, "is damaged"),
        (empty, "is damaged"),
        (of_another_machine, "is of another machine: big-endian, and this is "),
        (of_another_version, "was written by another version of bpfsvc"),
        (of_another_build, "is of other sources"),
        (refused, "does not load: this kernel"),
        (of_another_user, "could have been written by others"),
        (open_to_a_group, "could have been written by others"),
        (open_to_all, "could have been written by others"),
        (a_link, "cannot be read: "),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_an_unusable_file_is_replaced_and_one_line_reports_it(
    setup: Setup, change: Callable[[Setup], None], reason: str
) -> None:
    change(setup)
    setup.install()
    (line,) = setup.messages
    assert line.startswith(f"compiling anew: {setup.file} {reason}")
    assert "\n" not in line
    assert setup.compilations == 1
    assert setup.file.read_bytes() == setup.compiled


@pytest.mark.parametrize("which", ["itself", "above"])
def test_a_directory_that_others_may_write_to_is_left_alone(setup: Setup, which: str) -> None:
    """Other users who may rename files there could replace them with their own."""
    directory = setup.file.parent if which == "itself" else setup.file.parent.parent
    directory.chmod(0o777)
    setup.file.write_bytes(b"theirs")
    setup.install()
    assert setup.messages == [f"compiled programs are not kept: others may write to {directory}"]
    assert setup.compilations == 1
    assert setup.file.read_bytes() == b"theirs"


def test_a_parent_directory_may_be_writable_for_all_if_it_is_sticky(setup: Setup) -> None:
    """Like /tmp: there users cannot remove each other's files."""
    setup.file.parent.parent.chmod(0o1777)
    setup.install()
    assert (setup.compilations, setup.messages) == (0, [])


@pytest.mark.parametrize("below", [".", "cache"])
def test_a_file_in_place_of_the_directory_is_reported_and_ignored(setup: Setup, below: str) -> None:
    """Or in place of a parent directory."""
    obstacle = setup.file.parent.with_name("obstacle")
    obstacle.write_text("in the way")
    setup.file = obstacle / below / setup.file.name
    setup.install()
    (line,) = setup.messages
    assert line.startswith(f"compiled programs are not kept: {obstacle}")
    assert setup.compilations == 1


def test_programs_that_the_kernel_refuses_are_not_stored(setup: Setup) -> None:
    """The error names the program that was compiled just now, and no pins are left."""
    setup.file.unlink()
    setup.compiled = spoilt(setup.build)
    with pytest.raises(SystemUnfit, match=r"refuses the program gc: .*Invalid argument"):
        setup.install()
    assert not setup.file.exists()
    assert not setup.root.next.exists()


def test_maps_in_use_stay_when_the_kernel_refuses_a_program_later(setup: Setup) -> None:
    """Services are being written to them; the programs that are compiled then find them there."""
    put(setup.file.parent, SOURCE, spoilt(setup.build, "egress"))
    errors: list[Exception] = []
    installation = begin_install(setup.root, SOURCE, setup.messages.append, setup.file.parent)
    installation.on_failure(errors.append)
    pinned = installation.pinned
    pinned.map("services").update(bytes(4), bytes(pinned.map("services").value_size))
    installation.wait()
    assert (setup.compilations, errors) == (1, [])
    after = Pinned(setup.root.next)
    assert pinned.program("egress")
    assert map_id(after, "services") == map_id(pinned, "services")
    assert after.map("services").lookup(bytes(4)) is not None
    after.close()
    pinned.close()


def test_a_refusal_while_maps_are_in_use_is_reported_at_once_and_to_those_who_wait(
    setup: Setup,
) -> None:
    """The agent may be waiting for its API server."""
    setup.compiled = spoilt(setup.build, "egress")
    errors: list[Exception] = []
    installation = begin_install(setup.root, SOURCE, setup.messages.append)
    installation.on_failure(errors.append)
    with pytest.raises(SystemUnfit, match="refuses the program egress") as caught:
        installation.wait()
    installation.end_loading()
    assert errors == [caught.value]
    installation.pinned.close()


def test_old_builds_are_removed(setup: Setup) -> None:
    """Three are kept, for a return to the version before and back again."""
    for number in range(4):
        BytecodeCache(setup.file.parent, f"{number:016x}", print).write(b"")
    names = {file.name for file in setup.file.parent.iterdir()}
    assert len(names) == 3
    assert setup.file.name not in names
