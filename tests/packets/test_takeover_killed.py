"""An agent is killed while a newer build takes over, and the next one goes on from there."""

from __future__ import annotations

import os
import time

import pytest
from scapy.layers.l2 import Ether

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned
from tests.packets.builds import connect_all, states, works
from tests.packets.node import SIZES, UNSPEC
from tests.packets.packet import frame, same
from tests.packets.peers import TCP_PEERS
from tests.packets.takeover import Takeover

pytestmark = pytest.mark.slow


def test_programs_of_an_agent_that_ended_meanwhile_go_on(takeover: Takeover) -> None:
    """Until those of the next agent are attached, whose build is made in the same place."""
    node, peers = takeover.node, TCP_PEERS[0]
    takeover.load()
    peers.connect(node, peers.client, peers.vip, peers.backend)
    program = syscall.get(node.root.next / "programs" / "ingress")
    takeover.new.close()
    takeover.newer()
    packet = frame(peers.data(peers.client, peers.vip))
    for _ in range(20):  # the kernel empties an array of programs within a second
        time.sleep(0.1)
        verdict, left = syscall.program_test_run(program, packet)
        assert verdict == UNSPEC
        assert same(Ether(left).payload, peers.data(peers.client, peers.backend))
    os.close(program)
    node.installation.complete()
    assert sorted(path.name for path in node.root.path.iterdir()) == ["current"]


def test_the_new_build_is_in_force_when_it_serves(takeover: Takeover) -> None:
    """Another agent that comes then must not copy from the old build once more."""
    node, digest = takeover.node, takeover.old.layout.digest
    takeover.load()
    assert Pinned(node.root.current).layout.digest == digest
    takeover.take_over()
    node.installation.put_in_force()
    assert Pinned(node.root.current).layout.digest == takeover.new.layout.digest != digest
    assert Pinned(node.root.old).layout.digest == digest
    node.installation.complete()
    assert not node.root.old.exists()


def test_an_agent_finds_the_build_that_serves_though_the_agent_before_had_to_end_at_once(
    takeover: Takeover,
) -> None:
    """Before it could put that build in force. The programs of that build have opened more."""
    node, peers = takeover.node, TCP_PEERS[0]
    takeover.load()
    takeover.take_over()
    peers.connect(node, peers.client, peers.vip, peers.backend)
    takeover.newer()
    assert not node.installation.fresh
    assert takeover.works(peers, node.pinned, node.pinned)


def test_connections_of_the_old_build_stay_though_an_agent_ended_before_the_new_one_serves(
    takeover: Takeover,
) -> None:
    """After it had copied them. The old build serves on and opens more."""
    node, peers = takeover.node, TCP_PEERS[0]
    takeover.open_at_last(peers)
    takeover.newer()
    takeover.new = node.pinned
    takeover.settle("TAKEOVER_NONE")
    assert takeover.works(peers, takeover.new, takeover.new)


def test_what_an_agent_had_to_copy_last_is_copied_by_the_next(takeover: Takeover) -> None:
    """What the old programs opened and closed, after the copy and before the new ones served."""
    node, peers = takeover.node, TCP_PEERS[0]
    peers.connect(node, peers.client, peers.vip, peers.backend)
    takeover.load()
    node.installation.take_over()
    with takeover.at(takeover.old):
        peers.close(node, peers.client, peers.vip, peers.backend, peers.client)
        seen = connect_all(node)
    takeover.settle("TAKEOVER_ATTACHED")
    takeover.newer()
    assert not node.installation.fresh
    takeover.new = node.pinned
    takeover.settle("TAKEOVER_NONE")
    node.installation.complete()
    assert all(works(node, peers, client) for peers, client in seen.items())
    closed = [
        entry
        for entry in states(takeover.new, "connections").values()
        if entry["fin_sent"] and entry["fin_received"]
    ]
    assert len(closed) == 2


def test_a_third_build_has_what_an_agent_had_to_copy_from_the_first_to_the_second(
    takeover: Takeover,
) -> None:
    """As in a rollback, after the agent of the second was killed."""
    node, peers = takeover.node, TCP_PEERS[0]
    takeover.open_at_last(peers)
    takeover.settle("TAKEOVER_ATTACHED")
    node.load(load(SIZES))
    assert node.installation.fresh
    takeover.new = node.pinned
    takeover.take_over()
    node.installation.put_in_force()
    node.installation.complete()
    takeover.settle("TAKEOVER_NONE")
    assert takeover.works(peers, takeover.new, takeover.new)
