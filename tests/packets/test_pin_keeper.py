"""An agent's hold on what is pinned: removed pins end nothing, and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.agent.node.pin_keeper import PinKeeper
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.syscalls import mount, unmount
from bpfsvc.datapath.attach import tcx
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot, is_bpffs
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.datapath.syscall import program_id
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import wait
from tests.packets.node import Node
from tests.packets.peers import TCP_PEERS

TCP4 = TCP_PEERS[0]
LO = 1


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Node]:
    """A node with pins in a file system of its own, and a program attached by a link."""
    sandbox.require()
    path = tmp_path / "bpf"
    path.mkdir()
    mount("bpf", str(path), "bpf")
    node = Node(path / "bpfsvc")
    node.installation.complete()
    tcx.attach(node.root, LO, Hook.INGRESS, node.pinned.program("ingress"))
    yield node
    tcx.detach(node.root, LO)
    node.pinned.close()
    while is_bpffs(path):
        unmount(str(path))


@pytest.fixture
def keeper(own: Node) -> PinKeeper:
    own.root.lock()
    return PinKeeper(own.root, own.pinned)


def attached(node: Node) -> bool:
    """True if our program is attached to the interface."""
    return program_id(node.pinned.program("ingress")) in tcx.programs(LO, Hook.INGRESS)


def pins(root: PinRoot) -> set[str]:
    """Return all pins below a root."""
    return {str(path.relative_to(root.path)) for path in root.path.rglob("*") if path.is_file()}


def test_without_a_keeper_the_kernel_detaches_what_is_no_longer_pinned(own: Node) -> None:
    """A little later: the kernel frees what nobody holds when it has time."""
    assert attached(own)
    own.root.remove()
    wait(lambda: not attached(own), "the program is detached")


@pytest.mark.parametrize("way", ["removed", "unmounted"])
def test_all_pins_come_back_and_nothing_ends_meanwhile(
    own: Node, keeper: PinKeeper, way: str
) -> None:
    before = pins(own.root)
    TCP4.service(own, [TCP4.backend])
    seen = TCP4.connect(own, TCP4.client, TCP4.vip, TCP4.backend)
    assert keeper.missing() == 0
    if way == "removed":
        own.root.remove()
    else:
        unmount(str(own.root.path.parent))
    assert keeper.missing() == len(before)
    with pytest.raises(NotLoaded):
        Pinned(own.root.current)
    assert attached(own)
    keeper.restore()
    assert keeper.missing() == 0
    assert pins(own.root) == before
    own.pinned.close()
    own.pinned = Pinned(own.root.current)
    assert attached(own)
    assert own.forward(TCP4.data(TCP4.backend, seen)).src in TCP4.vip
    TCP4.connect(own, TCP4.external, TCP4.vip, TCP4.backend)


@pytest.mark.parametrize("name", ["current/maps/steps", "current/programs/egress", "links"])
def test_a_part_of_the_pins_comes_back(own: Node, keeper: PinKeeper, name: str) -> None:
    before = pins(own.root)
    gone = own.root.path / name
    for pin in gone.iterdir() if gone.is_dir() else [gone]:
        pin.unlink()
    assert keeper.missing() == 1
    keeper.restore()
    assert pins(own.root) == before
    assert attached(own)


def test_what_the_agent_itself_detached_does_not_come_back(own: Node, keeper: PinKeeper) -> None:
    tcx.detach(own.root, LO)
    keeper.hold_links()
    own.root.remove()
    keeper.restore()
    assert not attached(own)
    assert not list(own.root.links.iterdir())


def test_a_link_in_place_of_another_is_the_one_that_comes_back(
    own: Node, keeper: PinKeeper
) -> None:
    tcx.detach(own.root, LO)
    tcx.attach(own.root, LO, Hook.INGRESS, own.pinned.program("ingress"))
    keeper.hold_links()
    own.root.remove()
    keeper.restore()
    assert attached(own)
    assert tcx.program_id(own.root, LO, Hook.INGRESS)


def test_no_other_agent_can_start_with_the_pins_that_came_back(
    own: Node, keeper: PinKeeper
) -> None:
    own.root.remove()
    keeper.restore()
    with pytest.raises(BpfsvcError, match="another bpfsvc is running"):
        own.root.lock()


def test_where_nothing_can_be_pinned_the_error_says_what_to_do(
    own: Node, keeper: PinKeeper
) -> None:
    path = own.root.path.parent
    unmount(str(path))
    path.rmdir()
    with pytest.raises(BpfsvcError, match="nothing can be pinned"):
        keeper.restore()
    assert attached(own)
    path.mkdir()
    keeper.restore()
    assert keeper.missing() == 0
