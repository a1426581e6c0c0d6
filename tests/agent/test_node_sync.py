"""The order in which a node is changed."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest

from bpfsvc.agent.node import node_sync
from bpfsvc.agent.node.node_sync import NodeSync
from tests.config.settings import DEFAULTS


def test_the_link_of_a_watch_that_ends_is_no_lost_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are held anew at once. Pins that another program removed are restored before that."""
    parts = Mock()
    monkeypatch.setattr(node_sync, "NodeMaps", Mock())
    monkeypatch.setattr(node_sync, "FastPath", Mock())
    monkeypatch.setattr(node_sync, "MasqueradedFlows", Mock())
    monkeypatch.setattr(node_sync, "AllAttachments", lambda *_: parts.attachments)
    monkeypatch.setattr(node_sync, "PinWatch", lambda *_: parts.pins)
    NodeSync(DEFAULTS, Mock(), Mock(), Mock(), Mock()).watch_sockets(False)
    assert parts.mock_calls == [
        call.pins.check(),
        call.attachments.watch_sockets(False),
        call.pins.hold_links(),
    ]
