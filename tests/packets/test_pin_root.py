"""The directory of pins belongs to the agent's user alone: pins are the way to all packets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.base.syscalls import mount, unmount
from bpfsvc.datapath.maps.pins import PinRoot, is_bpffs
from bpfsvc.devtools.lab import sandbox
from tests.packets.node import Node

NOBODY = 65534


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A bpf file system that was mounted without a mode: everybody may write, as to /tmp."""
    path = sandbox.ROOT / "pin-root"
    path.mkdir()
    mount("bpf", str(path), "bpf")
    yield path
    unmount(str(path))
    path.rmdir()


def test_in_a_file_system_that_is_mounted_without_a_mode_everybody_may_make_directories(
    mounted: Path,
) -> None:
    assert mounted.stat().st_mode & 0o7777 == 0o1777


def test_a_new_directory_is_its_owners_alone(mounted: Path) -> None:
    root = PinRoot(mounted / "bpfsvc")
    root.create()
    assert root.path.stat().st_mode & 0o777 == 0o700
    assert root.path.stat().st_uid == os.geteuid()


def test_a_directory_of_an_earlier_build_is_used_as_it_is(mounted: Path) -> None:
    """It may be read by all; its pins may not."""
    root = PinRoot(mounted / "bpfsvc")
    root.path.mkdir(mode=0o755)
    root.create()


def test_no_pin_can_be_opened_by_others(node: Node) -> None:
    pins = [path for path in node.root.path.rglob("*") if not path.is_dir()]
    assert pins
    assert {pin.stat().st_mode & 0o077 for pin in pins} == {0}


@pytest.mark.parametrize("way", ["directory", "link", "writable for all"])
def test_a_directory_that_another_user_has_made_is_refused(mounted: Path, way: str) -> None:
    """Its owner could put other programs in the place of the agent's."""
    path = mounted / "bpfsvc"
    if way == "link":
        (mounted / "elsewhere").mkdir()
        path.symlink_to(mounted / "elsewhere")
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    else:
        path.mkdir()
        path.chmod(0o777 if way == "writable for all" else 0o755)
    if way == "directory":
        os.chown(path, NOBODY, NOBODY)
    with pytest.raises(SystemUnfit, match=r"would not be safe: .*bpfsvc") as refused:
        PinRoot(path).create()
    assert "mode=700" in refused.value.hint
    assert list(path.iterdir()) == []


@pytest.fixture
def unmounted() -> Iterator[Path]:
    """A directory without a bpf file system, as /sys/fs/bpf of a node that has not mounted it."""
    path = sandbox.ROOT / "no-bpf"
    path.mkdir()
    yield path
    while is_bpffs(path):
        unmount(str(path))
    path.rmdir()


def test_a_bpf_file_system_is_mounted_once_and_for_its_owner_alone(unmounted: Path) -> None:
    root = PinRoot(unmounted / "bpfsvc")
    assert root.mount(at=unmounted)
    assert is_bpffs(unmounted)
    assert unmounted.stat().st_mode & 0o777 == 0o700
    root.create()
    assert not root.mount(at=unmounted)


def test_nothing_is_mounted_for_pins_at_a_chosen_directory(unmounted: Path) -> None:
    assert not PinRoot(unmounted / "bpfsvc").mount(at=unmounted / "other")
    assert not is_bpffs(unmounted)


def names(root: PinRoot) -> list[str]:
    return sorted(path.name for path in root.path.iterdir())


def test_a_build_that_was_never_attached_makes_room_for_the_next(mounted: Path) -> None:
    """However often an agent fails to start: each build takes memory of the kernel."""
    root = PinRoot(mounted / "bpfsvc")
    root.create()
    for _ in range(3):
        root.clear_next()
        root.next.mkdir()
    root.clear_next()
    assert names(root) == []


def test_a_build_that_may_be_attached_stays_beside_the_next(mounted: Path) -> None:
    root = PinRoot(mounted / "bpfsvc")
    root.create()
    for _ in range(2):
        root.next.mkdir()
        root.mark_attached()
        root.clear_next()
    assert names(root) == ["aside-0", "aside-1"]
    root.discard_others()
    assert names(root) == []


def test_an_agent_that_ended_between_two_renames_has_left_the_old_build_in_force(
    mounted: Path,
) -> None:
    root = PinRoot(mounted / "bpfsvc")
    root.create()
    root.old.mkdir()
    root.next.mkdir()
    root.clear_next()
    assert names(root) == ["current"]
