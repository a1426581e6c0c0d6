"""Processes of the node whose sockets the programs of a test serve."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bpfsvc.datapath.attach import cgroup
from bpfsvc.devtools.lab import sandbox
from tests.packets.node import Node


def attached_cgroup(node: Node, name: str, stack: ExitStack) -> Path:
    """Attach the programs of sockets to a new cgroup, until the stack ends; return the cgroup."""
    group = sandbox.CGROUP_ROOT / name
    group.mkdir()
    stack.callback(group.rmdir)
    node.root.links.mkdir(exist_ok=True)
    cgroup.attach(node.root, node.pinned, group)
    stack.callback(cgroup.detach, node.root)
    everything = node.pinned.layout.constant("SOCKET_LB_ALL")
    node.settings(socket_lb=everything, netns_cookie=cgroup.netns_cookie())
    return group
