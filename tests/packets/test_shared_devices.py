"""A device leaves the fast path: netfilter is told of the connections from outside first."""

from __future__ import annotations

import dataclasses
import time
from unittest.mock import Mock

import pytest

from bpfsvc.agent import node_sync
from bpfsvc.agent.attachments import TcAttachments
from bpfsvc.agent.node_sync import NodeSync
from bpfsvc.datapath.netlink.devices import Interfaces
from tests.config.settings import DEFAULTS
from tests.packets.node import Node

GUARD_SECONDS = 60
"""FAST_PATH_GUARD_SECONDS of the C sources."""


def allows_new(node: Node) -> bool:
    """True if what begins may take the fast path."""
    raw = node.pinned.map("settings").lookup(bytes(4)) or b""
    values = node.pinned.layout.maps["settings"].value.unpack(raw)
    age = int(time.monotonic()) - int(values["fast_path_second"]) & 0xFFFFFFFF
    return bool(values["fast_path"]) and (age <= GUARD_SECONDS or age >= 1 << 31)


def test_no_connection_begins_on_the_fast_path_while_netfilter_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not be among those that are told, and might be by the device."""
    config = dataclasses.replace(DEFAULTS, fast_path="auto")
    shared, allowed = {7: False}, []
    monkeypatch.setattr(TcAttachments, "shared", lambda *_: dict(shared))
    monkeypatch.setattr(node_sync, "hand_over", lambda _: allowed.append(allows_new(node)))
    sync = NodeSync(config, node.installation, Mock(), Mock(), Mock(), Mock())
    sync.follow(Interfaces((), 0, 0))
    sync.use_fast_path("")
    assert allows_new(node)
    shared[7] = True
    sync.check_shared_devices()
    assert allowed == [False]
    assert allows_new(node)
