"""A newer build takes over from an older one, whose connections have another layout.

The old programs serve until the new ones are attached everywhere; then the new tables are those of
the old build. (``tests/fuzz/upgrades.py`` does the same in random histories.)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from scapy.layers.sctp import SCTPChunkAbort, SCTPChunkCookieAck, SCTPChunkCookieEcho

from bpfsvc.agent.node.node_maps import begin_nothing_fast
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader.connection_copies import copy_connections
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned
from tests.packets.builds import Start, states
from tests.packets.node import SIZES
from tests.packets.packet import sctp, sctp_init, sctp_init_ack, tcp
from tests.packets.peers import ALL_PEERS, SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers
from tests.packets.takeover import Takeover

pytestmark = pytest.mark.slow

HOOKS = ("ingress", "egress")


def test_connections_work_by_each_mixture_of_both_builds(takeover: Takeover) -> None:
    """Those that are not masqueraded, and those past the Service."""
    for peers in ALL_PEERS:
        peers.connect(takeover.node, peers.client, peers.vip, peers.backend)
    takeover.load()
    both = (takeover.old, takeover.new)
    for builds in itertools.product(both, repeat=2):
        assert all(takeover.works(peers, *builds) for peers in ALL_PEERS)
        assert all(takeover.passes_directly(peers, *builds) for peers in ALL_PEERS)
    takeover.take_over()
    new = takeover.new, takeover.new
    assert all(takeover.works(peers, *new) for peers in ALL_PEERS)
    assert all(takeover.passes_directly(peers, *new) for peers in ALL_PEERS)


def test_until_then_all_is_opened_and_closed_by_the_old_programs(takeover: Takeover) -> None:
    takeover.load()
    before = takeover.states(takeover.new)
    with takeover.at(takeover.new):
        for peers in ALL_PEERS:
            peers.connect(takeover.node, peers.client, peers.vip, peers.backend)
        for peers in TCP_PEERS:
            peers.close(takeover.node, peers.client, peers.vip, peers.backend, peers.client)
    assert takeover.states(takeover.new) == before
    assert len(states(takeover.old, "connections")) == 2 * len(ALL_PEERS)


def test_the_new_tables_become_those_of_the_old_build(takeover: Takeover) -> None:
    """With what was opened, established, closed and removed since the first copy."""
    node = takeover.node
    peers, *others = TCP_PEERS
    ports = [peers.with_port(peers.client, port) for port in (41000, 41001, 41002)]
    for client in ports:
        peers.connect(node, client, peers.vip, peers.backend)
    takeover.begin(peers)
    node.age(30)  # a packet changes both entries of a connection, and renews one
    takeover.load()
    with takeover.at(takeover.old):
        takeover.establish(peers)
        peers.close(node, ports[0], peers.vip, peers.backend, ports[0])
        opening = peers.opening(ports[1], peers.vip)
        for packet in (opening, peers.data(ports[2], peers.vip)):
            takeover.old.map("connections").delete(node.flow("ingress", packet))
        takeover.begin(*others)
    node.installation.take_over()
    assert takeover.states(takeover.new) == takeover.states(takeover.old)
    assert any(entry["fin_sent"] for entry in states(takeover.new, "connections").values())


def test_what_the_new_programs_establish_or_remove_is_not_copied_again(
    takeover: Takeover,
) -> None:
    node = takeover.node
    takeover.begin(*TCP_PEERS)
    for peers in UDP_PEERS:
        peers.connect(node, peers.client, peers.vip, peers.backend)
    takeover.load()
    takeover.take_over()
    with takeover.at(takeover.new):
        takeover.establish(*TCP_PEERS)
        for peers in UDP_PEERS:
            packets = peers.data(peers.client, peers.vip), peers.data(peers.backend, peers.client)
            keys = [node.flow(hook, packet) for hook, packet in zip(HOOKS, packets, strict=True)]
            takeover.new.map("connections").delete_many(keys)
    before = takeover.states(takeover.new)
    assert not before["new_connections"]
    node.installation.catch_up()
    assert takeover.states(takeover.new) == before


def test_what_the_old_programs_establish_at_last_is_established(takeover: Takeover) -> None:
    """After the tables were copied, and before the new programs serve.

    The last packet of the server was long before: its entry is as old, and changes.
    """
    node = takeover.node
    takeover.begin(*ALL_PEERS)
    node.age(30)
    takeover.load()
    node.installation.take_over()
    with takeover.at(takeover.old):
        takeover.establish(*ALL_PEERS)
    node.installation.catch_up()
    assert not states(takeover.new, "new_connections")
    assert takeover.states(takeover.new) == takeover.states(takeover.old)


def test_what_one_end_closes_at_last_is_half_closed(takeover: Takeover) -> None:
    """In both entries, of which the other end's is old."""
    node = takeover.node
    for peers in TCP_PEERS:
        peers.connect(node, peers.client, peers.vip, peers.backend)
    node.age(30)
    takeover.load()
    node.installation.take_over()
    with takeover.at(takeover.old):
        for peers in TCP_PEERS:
            node.forward(tcp(peers.client, peers.vip, "FA"))
    node.installation.catch_up()
    assert takeover.states(takeover.new) == takeover.states(takeover.old)
    kept = states(takeover.new, "connections").values()
    assert all({entry["fin_sent"], entry["fin_received"]} == {0, 1} for entry in kept)


def test_what_the_new_programs_have_established_has_no_second_entry(takeover: Takeover) -> None:
    """The old build has it as it was before."""
    takeover.begin(*ALL_PEERS)
    takeover.load()
    takeover.take_over()
    takeover.establish(*ALL_PEERS)
    before = takeover.states(takeover.new)
    copy_connections(takeover.old, takeover.new, both=True)
    assert takeover.states(takeover.new) == before


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_a_client_that_establishes_and_closes_by_one_packet_is_heard(
    takeover: Takeover, peers: Peers
) -> None:
    """Its server has answered the old programs: what the answer acknowledges is not copied."""
    takeover.begin(peers)
    takeover.load()
    takeover.take_over()
    client, vip, backend = peers.client, peers.vip, peers.backend
    with takeover.at(takeover.new):
        peers.close(takeover.node, client, vip, backend, client)
    takeover.node.installation.complete()
    kept = states(takeover.new, "connections").values()
    assert [(entry["fin_sent"], entry["fin_received"]) for entry in kept] == [(1, 1)] * 2


def test_if_old_programs_cannot_be_called_the_new_ones_have_all_connections_at_once(
    takeover: Takeover,
) -> None:
    """As if the pin of one were missing: then none is called. What the new ones change stays."""
    node, (peers, other) = takeover.node, TCP_PEERS
    takeover.newer()
    takeover.new = node.pinned
    with takeover.at(takeover.old):
        for some in (peers, other):
            some.connect(node, some.client, some.vip, some.backend)
    (node.root.current / "programs" / "egress_l3").unlink()
    node.installation.attach_begins()
    with pytest.raises(BpfsvcError):
        node.installation.call_replaced()
    assert takeover.states(takeover.new) == takeover.states(takeover.old)
    steps = takeover.new.map("steps").count()
    assert steps == takeover.new.layout.constant("STEPS")
    peers.close(node, peers.client, peers.vip, peers.backend, peers.client)
    node.installation.take_over()
    node.installation.complete()
    ends = [entry["fin_sent"] for entry in states(takeover.new, "connections").values()]
    assert sorted(ends) == [0, 0, 1, 1]
    assert takeover.works(other, takeover.new, takeover.new)


def test_if_neither_they_can_be_called_nor_all_be_copied_what_the_new_ones_open_stays(
    takeover: Takeover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the kernel had no memory for an entry."""
    node, peers = takeover.node, UDP_PEERS[0]
    takeover.newer()
    takeover.new = node.pinned
    (node.root.current / "programs" / "egress_l3").unlink()
    node.installation.attach_begins()
    with takeover.at(takeover.old):
        peers.connect(node, peers.external, peers.vip, peers.backend)
    monkeypatch.setattr(Map, "update_many", _no_memory)
    with pytest.raises(BpfsvcError):
        node.installation.call_replaced()
    monkeypatch.undo()
    peers.connect(node, peers.client, peers.vip, peers.backend)
    before = takeover.states(takeover.new)["connections"]
    node.installation.take_over()
    assert before
    assert takeover.states(takeover.new)["connections"].items() >= before.items()


def _no_memory(*_: object) -> None:
    raise BpfsvcError("no memory for an entry")


@pytest.mark.parametrize("peers", ALL_PEERS, ids=str)
def test_what_the_new_programs_have_established_stays_though_the_old_build_has_evicted_it(
    takeover: Takeover, peers: Peers
) -> None:
    """After it was copied: a packet of one end renews one of both entries."""
    node = takeover.node
    takeover.load()
    with takeover.at(takeover.old):
        takeover.begin(peers)
        node.age(5)
    node.installation.take_over()
    old = takeover.old.map("new_connections")
    old.delete_many([key for key, _ in old.items()])
    takeover.settle("TAKEOVER_ATTACHED")
    takeover.establish(peers)
    node.installation.put_in_force()
    node.installation.catch_up()
    takeover.settle("TAKEOVER_NONE")
    node.installation.complete()
    assert takeover.works(peers, takeover.new, takeover.new)


def test_an_association_that_was_copied_ends_by_an_abort(takeover: Takeover) -> None:
    """Its tags are known: no packet says them but the first ones."""
    node, peers = takeover.node, SCTP_PEERS[0]
    cookie = SCTPChunkCookieEcho(cookie=b"abcd")
    node.forward(sctp_init(peers.client, peers.vip))
    node.forward(sctp_init_ack(peers.backend, peers.client))
    node.forward(sctp(peers.client, peers.vip, cookie))
    node.forward(sctp(peers.backend, peers.client, SCTPChunkCookieAck()))
    takeover.load()
    takeover.take_over()
    node.installation.complete()
    node.forward(sctp(peers.client, peers.vip, SCTPChunkAbort()))
    assert all(entry["reset"] for entry in states(takeover.new, "connections").values())
    assert node.count("connections") == 2


def test_where_the_new_table_is_full_the_oldest_connections_make_room(takeover: Takeover) -> None:
    """Both entries of a connection: a datagram that met one alone would be dropped."""
    node, peers = takeover.node, UDP_PEERS[0]
    room = SIZES.max_new_connections // 2
    before, after = range(20000, 20000 + room - 200), range(30000, 30600)

    def begin(ports: Iterable[int]) -> None:
        for port in ports:
            client = peers.with_port(peers.client, port)
            peers.begin(node, client, peers.vip, peers.backend)

    begin(before)
    takeover.load()
    takeover.take_over()
    with takeover.at(takeover.new):
        begin(after)
    kept = clients(takeover.new, peers)
    assert len(kept[0] & kept[1]) > room - 400
    assert len(kept[0] ^ kept[1]) < 20
    assert set(after) <= kept[0] & kept[1]
    assert max(set(before) - kept[0]) < before[0] + 1200


def clients(pinned: Pinned, peers: Peers) -> tuple[set[int], set[int]]:
    """Return the ports of clients whose own entry is there, and whose entry for answers is."""
    key = pinned.layout.maps["new_connections"].key
    server = int(peers.backend.rpartition(":")[2])
    ports: tuple[set[int], set[int]] = (set(), set())
    for packed, _ in pinned.map("new_connections").items():
        flow = key.unpack(packed)
        is_reply = flow["source_port"] == server
        ports[is_reply].add(int(flow["destination_port" if is_reply else "source_port"]))
    return ports


def test_the_old_build_begins_nothing_on_the_fast_path(takeover: Takeover) -> None:
    takeover.load()
    before = settings_of(takeover.new)
    begin_nothing_fast(takeover.old)
    assert settings_of(takeover.new) == before
    long_ago = int(settings_of(takeover.old)["fast_path_second"])
    assert int(time.monotonic()) - long_ago & 0xFFFFFFFF > 1 << 16


def settings_of(pinned: Pinned) -> dict[str, int | bytes]:
    record = pinned.layout.maps["settings"].value
    return record.unpack(pinned.map("settings").lookup(bytes(4)) or b"")


@pytest.mark.parametrize("table", ["max_connections", "max_new_connections"])
def test_a_connection_that_is_established_where_one_table_has_another_size_stays(
    start: Start, table: str
) -> None:
    """Its server's last packet came long before."""
    node = start(load(SIZES))
    larger = load(replace(SIZES, **{table: 8192}))
    takeover = Takeover(node, lambda: node.load(larger))
    takeover.begin(*ALL_PEERS)
    node.age(30)
    takeover.load()
    takeover.take_over()
    takeover.establish(*ALL_PEERS)
    node.installation.complete()
    takeover.settle("TAKEOVER_NONE")
    assert all(takeover.works(peers, takeover.new, takeover.new) for peers in ALL_PEERS)
    assert node.count("connections") == 2 * len(ALL_PEERS)
