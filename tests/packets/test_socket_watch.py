"""When and in which order programs of sockets are attached.

The one that follows TCP sockets is attached as long as a Service asks for quarantine.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from bpfsvc.agent.node.attachments import SocketWatch
from bpfsvc.config.config import Config
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import cgroup, links
from bpfsvc.datapath.loader.compiler import SOCKET_PROGRAMS, WATCH_PROGRAM
from bpfsvc.devtools.lab import sandbox
from tests.config.settings import DEFAULTS
from tests.packets.node import Node


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a cgroup without processes."""
    directory = sandbox.CGROUP_ROOT / "watched"
    directory.mkdir()
    yield directory
    if directory.exists():
        directory.rmdir()


def config_for(group: Path | None) -> Config:
    """Return what an agent is told about sockets below a cgroup."""
    return dataclasses.replace(DEFAULTS, cgroup_root=group, socket_lb="all")


def watched(node: Node) -> bool:
    """True if the kernel has the program attached."""
    return bool(cgroup.attached(node.installation.root, WATCH_PROGRAM))


def test_what_another_program_detached_is_attached_again(node: Node, group: Path) -> None:
    watch = SocketWatch(config_for(group), node.installation, Mock())
    watch.use(True)
    assert watched(node)
    assert watch.repair() == []
    with links.opened(node.installation.root.links / "sockops") as link:
        syscall.link_detach(link)
    assert not watched(node)
    assert watch.repair() == [f"the sockets of {group}"]
    assert watched(node)
    watch.use(False)
    assert not watched(node)
    assert watch.repair() == []


def test_what_could_not_be_attached_is_tried_again_and_reported_meanwhile(
    node: Node, group: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cgroup may be made after the agent; the reason is logged once."""
    reports = Mock()
    group.rmdir()
    watch = SocketWatch(config_for(group), node.installation, reports)
    with caplog.at_level(logging.WARNING):
        watch.use(True)
        assert watch.repair() == []
    assert len(caplog.records) == 1
    (name, note), _ = reports.note.call_args
    assert name == "socket watch"
    assert "No such file" in note
    group.mkdir()
    assert watch.repair() == []
    assert watched(node)
    reports.note.assert_called_with("socket watch", None)
    watch.use(False)


def test_without_a_cgroup_nothing_is_attached(node: Node) -> None:
    watch = SocketWatch(config_for(None), node.installation, Mock())
    watch.use(True)
    assert watch.repair() == []
    assert not watched(node)


def test_the_end_of_a_socket_is_attached_before_its_beginning(
    node: Node, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that connects and closes while programs are attached would not be noticed else."""
    order: list[int] = []
    create = syscall.link_create

    def noted(program: int, target: int, attach_type: int, flags: int = 0) -> int:
        order.append(attach_type)
        return create(program, target, attach_type, flags)

    monkeypatch.setattr(syscall, "link_create", noted)
    root = node.installation.root
    try:
        cgroup.attach(root, node.pinned, group)
    finally:
        assert cgroup.detach(root) == len(SOCKET_PROGRAMS)
    assert sorted(order) == sorted(SOCKET_PROGRAMS.values())
    begins = [SOCKET_PROGRAMS[name] for name in ("connect4", "connect6", "sendmsg4", "sendmsg6")]
    assert order[-len(begins) :] == begins[::-1]
