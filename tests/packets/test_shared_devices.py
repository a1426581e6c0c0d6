"""A device leaves the fast path: netfilter is told of the connections from outside first."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from bpfsvc.agent.node import fast_path
from bpfsvc.agent.node.attachments import TcAttachments, shared_devices
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.base.fast_path import FAST, FastPathUse
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.devices import Device, Interfaces
from tests.config.settings import DEFAULTS
from tests.packets.node import Node

ETHERNET = 1
"""ARPHRD_ETHER."""

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
    monkeypatch.setattr(fast_path, "shared_devices", lambda *_: dict(shared))
    monkeypatch.setattr(fast_path, "hand_over", lambda _: allowed.append(allows_new(node)))
    sync = NodeSync(config, node.installation, Mock(), Mock(), Mock())
    sync.follow_network(Interfaces((), 0, 0))
    sync.use_fast_path(FastPathUse(FAST))
    assert allows_new(node)
    shared[7] = True
    sync.check_shared_devices()
    assert allowed == [False]
    assert allows_new(node)


def test_a_bridge_leaves_the_fast_path_with_the_first_of_its_ports(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets are redirected to the bridge, and the answers come by the port."""
    config = dataclasses.replace(DEFAULTS, fast_path="auto")
    bridge = Device(30, "cni0", "bridge", 0, True, ETHERNET, ())
    ports = [Device(each, f"veth{each}", "veth", 30, True, ETHERNET, ()) for each in (31, 32)]
    network = Interfaces((bridge, *ports), 0, 0)
    others: set[int] = set()
    told = Mock()
    monkeypatch.setattr(
        fast_path,
        "shared_devices",
        lambda _, found: {entry.index: entry.index in others for entry in found},
    )
    monkeypatch.setattr(TcAttachments, "follow_network", lambda *_: None)
    monkeypatch.setattr(fast_path, "hand_over", told)
    sync = NodeSync(config, node.installation, Mock(), Mock(), Mock())
    sync.use_fast_path(FastPathUse(FAST))
    sync.follow_network(network)
    assert fast(node) == {30, 31, 32}
    others.add(31)
    sync.check_shared_devices()
    assert fast(node) == {32}
    told.assert_called_once()
    others.clear()
    sync.check_shared_devices()
    assert fast(node) == {30, 31, 32}
    assert allows_new(node)


def fast(node: Node) -> set[int]:
    """Return the indices of the interfaces that the fast path uses."""
    interfaces = node.pinned.map("interfaces")
    record = node.pinned.layout.maps["interfaces"].value
    return {
        int.from_bytes(key, sys.byteorder)
        for key, value in interfaces.items()
        if record.unpack(value)["shortcut"]
    }


def test_a_device_that_is_gone_is_not_shared(tmp_path: Path) -> None:
    """Or the bridge of each pod that ends would leave the fast path for a while."""
    gone = Device(999_999, "veth9", "veth", 30, True, ETHERNET, ())
    assert shared_devices(PinRoot(tmp_path), [gone]) == {gone.index: False}
