"""A newer build beside the active one: which maps it shares, and which entries it copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc.datapath.loader.connection_copies import copy_connections
from bpfsvc.datapath.loader.installation import migrate
from bpfsvc.datapath.loader.map_copies import converter
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.layout import Layout, Record
from bpfsvc.datapath.maps.pins import Pinned
from tests.packets.builds import (
    FIELD,
    FILTER,
    Start,
    build,
    connect_all,
    filter_bytes,
    map_id,
    states,
    works,
)
from tests.packets.node import SIZES, Node
from tests.packets.packet import same
from tests.packets.peers import ALL_PEERS, TCP_PEERS, UDP_PEERS, Peers


@pytest.mark.slow
def test_connections_of_another_layout_are_copied_and_all_other_maps_are_shared(
    start: Start, tmp_path: Path
) -> None:
    node = start(load(SIZES))
    seen = connect_all(node)
    node.half_open(1 << 20)
    begun = {peers: peers.with_port(peers.external, 41000) for peers in ALL_PEERS}
    begun_as = {
        peers: peers.begin(node, client, peers.vip, peers.backend)
        for peers, client in begun.items()
    }
    before, known = node.pinned, node.filtered()
    old = {name: states(before, name) for name in ("connections", "new_connections")}
    assert {name: len(entries) for name, entries in old.items()} == {
        "connections": 4 * len(ALL_PEERS),
        "new_connections": 4 * len(ALL_PEERS),
    }

    node.load(build(tmp_path / "bpf", FIELD))
    assert node.installation.copies_connections
    for name, entries in old.items():
        assert states(node.pinned, name) == {
            key: {**entry, "mark": 0, "acknowledged": 0, "window": 0}
            for key, entry in entries.items()
        }
    own = {"connections", "new_connections", "layout", "steps", "settings"}
    for name in node.pinned.layout.maps:
        shared = map_id(node.pinned, name) == map_id(before, name)
        assert shared == (name not in own), name
    assert node.filtered() == known

    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)
    for peers, client in begun.items():
        comes, goes = peers.proof(client, peers.vip, peers.backend, begun_as[peers])
        assert same(node.forward(comes), goes)
    assert (node.count("new_connections"), node.count("connections")) == (0, 8 * len(ALL_PEERS))


@pytest.mark.slow
def test_connections_that_the_old_programs_stored_last_are_copied_too(
    start: Start, tmp_path: Path
) -> None:
    """They run until the new ones are attached everywhere, and write to the old maps."""
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    old = node.pinned
    node.load(load(SIZES))
    new, node.pinned = node.pinned, old
    seen = connect_all(node)
    node.pinned = new
    assert node.count("connections") == 0
    assert 0 in filter_bytes(node), "nothing has been copied yet"
    node.installation.complete()
    assert filter_bytes(node) == {1}
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)


@pytest.mark.slow
def test_the_build_that_is_replaced_has_connections_until_the_new_one_is_attached_everywhere(
    start: Start, tmp_path: Path
) -> None:
    """Their packets meet programs of both builds. A datagram that is lost is not sent again."""
    node = start(load(SIZES))
    for peers in ALL_PEERS:
        peers.service(node, [peers.backend], str(peers), masquerade=True)
    old = node.pinned
    node.load(build(tmp_path / "bpf", FIELD))
    new = node.pinned
    node.installation.call_replaced()

    node.settings(takeover=new.layout.constant("TAKEOVER_ATTACHING"))
    seen = {
        peers: peers.connect(node, peers.external, peers.vip, peers.backend) for peers in ALL_PEERS
    }
    assert (len(states(new, "connections")), len(states(old, "connections"))) == (
        0,
        4 * len(ALL_PEERS),
    )
    node.settings(takeover=new.layout.constant("TAKEOVER_ATTACHED"))
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS if peers in TCP_PEERS)
    for peers in ALL_PEERS:
        answer = node.forward(peers.data(peers.backend, seen[peers]))
        assert same(answer, peers.data(peers.vip, peers.external))
        client = peers.with_port(peers.external, 41000)
        seen_later = peers.connect(node, client, peers.vip, peers.backend)
        assert same(
            node.forward(peers.data(peers.backend, seen_later)), peers.data(peers.vip, client)
        )
    assert node.count("connections") == 4 * len(ALL_PEERS)

    node.installation.complete()
    node.settings()
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)


@pytest.mark.slow
@pytest.mark.parametrize("reply", [0, 1])
def test_the_build_that_is_replaced_has_what_is_copied_by_half(
    start: Start, tmp_path: Path, reply: int
) -> None:
    """An entry is copied after the other, and an answer may come between."""
    node = start(load(SIZES))
    for peers in UDP_PEERS:
        peers.service(node, [peers.backend], str(peers), masquerade=True)
    seen = {
        peers: peers.begin(node, peers.external, peers.vip, peers.backend) for peers in UDP_PEERS
    }
    node.load(build(tmp_path / "bpf", FIELD))
    node.installation.call_replaced()
    missing = [
        key for key, state in states(node.pinned, "connections").items() if state["reply"] == reply
    ]
    assert len(missing) == 2 * len(UDP_PEERS)
    node.pinned.map("connections").delete_many(missing)
    node.settings(takeover=node.pinned.layout.constant("TAKEOVER_ATTACHED"))
    copied, evicted = node.count("connections"), node.counter("dropped__evicted")
    for peers in UDP_PEERS:
        answer = node.forward(peers.data(peers.backend, seen[peers]))
        assert same(answer, peers.data(peers.vip, peers.external))
    assert node.count("connections") == copied
    assert node.counter("dropped__evicted") == evicted


@pytest.mark.slow
def test_later_copies_take_only_connections_with_packets_since_the_one_before(
    start: Start, tmp_path: Path
) -> None:
    """While the last copy runs, connections wait if their packets meet both builds."""
    node = start(build(tmp_path / "bpf", FIELD))
    seen = connect_all(node)
    node.age(60)
    old = node.pinned
    node.load(load(SIZES))
    new = node.pinned
    assert states(new, "connections").keys() == states(old, "connections").keys()
    for key in states(new, "connections"):
        new.map("connections").delete(key)

    used = ALL_PEERS[0]
    node.pinned = old
    assert works(node, used, seen[used])
    node.pinned = new
    node.installation.catch_up()
    assert node.count("connections") == 4
    assert works(node, used, seen[used])
    node.installation.complete()
    assert node.count("connections") == 4


@pytest.mark.slow
@pytest.mark.parametrize("later", ["neither", "old", "new"])
def test_ends_that_each_build_notes_alone_close_a_connection(
    start: Start, tmp_path: Path, later: str
) -> None:
    """Each has the time of its own FIN, or both have the time of a packet before."""
    old, new, complete = two_builds(start, tmp_path)
    write(old, SECOND * (later == "old"), fin_sent=1)
    write(new, SECOND * (later == "new"), fin_received=1)
    complete()
    assert ends(new) == {(1, 1)}


@pytest.mark.slow
def test_a_connection_that_the_old_programs_opened_anew_is_open(
    start: Start, tmp_path: Path
) -> None:
    """It was closed when it was copied."""
    old, new, complete = two_builds(start, tmp_path)
    write(new, fin_sent=1, fin_received=1)
    write(old, SECOND)
    complete()
    assert ends(new) == {(0, 0)}


@pytest.mark.slow
def test_a_fin_that_is_sent_again_to_the_new_programs_leaves_a_connection_closed(
    start: Start, tmp_path: Path
) -> None:
    old, new, complete = two_builds(start, tmp_path)
    write(old, fin_sent=1, fin_received=1)
    write(new, SECOND, fin_sent=1)
    complete()
    assert ends(new) == {(1, 1)}


@pytest.mark.slow
def test_a_connection_that_the_old_programs_established_is_established(
    start: Start, tmp_path: Path
) -> None:
    """It was copied half open, and its later packets met the new programs."""
    old, new, complete = two_builds(start, tmp_path)
    write(old, established=1)
    write(new, SECOND, established=0, held=1)
    complete()
    kept = {(state["established"], state["held"]) for state in states(new, "connections").values()}
    assert kept == {(1, 0)}


@pytest.mark.slow
def test_what_only_the_new_programs_have_noted_stays(start: Start, tmp_path: Path) -> None:
    """Both builds have an entry of the same time: the masquerade has got its port since."""
    old, new, complete = two_builds(start, tmp_path)
    write(old, masquerade_pending=1)
    write(new, masquerade_pending=0, acknowledged=77)
    complete()
    kept = states(new, "connections").values()
    assert {(state["masquerade_pending"], state["acknowledged"]) for state in kept} == {(0, 77)}


SECOND = 1_000_000_000
"""In ns."""


def two_builds(start: Start, tmp_path: Path) -> tuple[Pinned, Pinned, Callable[[], None]]:
    """Return an old and a new build with the same connections, and what completes the upgrade."""
    node = start(build(tmp_path / "bpf", FIELD))
    connect_all(node)
    old = node.pinned
    node.load(load(SIZES))
    node.installation.take_over()
    # Connections that have been silent for seconds were copied whole.
    age = time.monotonic_ns() - max(int(row["seen"]) for row in states(old, "connections").values())
    for pinned in (old, node.pinned):
        write(pinned, age)

    def complete() -> None:
        node.installation.catch_up()
        node.installation.complete()

    return old, node.pinned, complete


def write(pinned: Pinned, later: int = 0, **fields: int) -> None:
    """Change fields of all connections of a build; their last packet is so much ``later``."""
    record = pinned.layout.maps["connections"].value
    for key, state in states(pinned, "connections").items():
        changed = state | fields | {"seen": int(state["seen"]) + later}
        pinned.map("connections").update(key, record.pack(changed))


def ends(pinned: Pinned) -> set[tuple[object, object]]:
    """Return which ends of its connections a build has noted."""
    connections = states(pinned, "connections").values()
    return {(state["fin_sent"], state["fin_received"]) for state in connections}


@pytest.mark.slow
def test_connections_that_the_old_programs_removed_after_the_copy_are_gone(
    start: Start, tmp_path: Path
) -> None:
    """They would stay for a day: no packet of theirs comes any more."""
    node = start(build(tmp_path / "bpf", FIELD))
    seen = connect_all(node)
    old = node.pinned
    lasting = states(old, "connections").keys()
    peers = ALL_PEERS[0]
    peers.connect(node, peers.with_port(peers.external, 41000), peers.vip, peers.backend)
    ended = states(old, "connections").keys() - lasting
    node.age(60)
    node.load(load(SIZES))
    assert states(node.pinned, "connections").keys() == lasting | ended

    old.map("connections").delete_many(sorted(ended))
    node.installation.catch_up()
    node.installation.complete()
    assert states(node.pinned, "connections").keys() == lasting
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)


@pytest.mark.slow
def test_connections_of_a_build_with_another_filter_are_still_found(
    start: Start, tmp_path: Path
) -> None:
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    seen = connect_all(node)
    node.load(load(SIZES))
    assert filter_bytes(node) == {1}
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)
    node.installation.complete()
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)


@pytest.mark.slow
def test_connections_in_a_map_shared_with_a_build_with_another_filter_are_still_found(
    start: Start, tmp_path: Path
) -> None:
    """Even if there are none yet: the old programs write until they are replaced."""
    node = start(build(tmp_path / "bpf", FILTER))
    old = node.pinned
    node.load(load(SIZES))
    assert not node.installation.copies_connections
    assert filter_bytes(node) == {1}
    new, node.pinned = node.pinned, old
    seen = connect_all(node)
    node.pinned = new
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)


@pytest.mark.slow
def test_a_build_without_connections_to_copy_uses_the_filter_at_once(
    start: Start, tmp_path: Path
) -> None:
    node = start(build(tmp_path / "bpf", FIELD, FILTER))
    node.load(load(SIZES))
    node.installation.complete()
    assert filter_bytes(node) == {0}
    connect_all(node)
    assert filter_bytes(node) == {0, 1}


@pytest.mark.parametrize("filled", ["connections", "new_connections"])
def test_connections_of_a_build_without_any_filter_are_still_found(
    node: Node, tcp_peers: Peers, filled: str
) -> None:
    """As in releases before the filter, which had other maps of connections."""
    tcp_peers.service(node, [tcp_peers.backend])
    maps = {
        name: replace(layout, max_entries=1) if name.endswith("connections") else layout
        for name, layout in node.pinned.layout.maps.items()
        if name != "port_filters"
    }
    old = Pinned(node.pinned.directory)
    old.layout = Layout("older", maps)
    migrate(old, node.pinned)
    assert 0 in filter_bytes(node)
    if filled == "connections":
        tcp_peers.connect(node, tcp_peers.client, tcp_peers.vip, tcp_peers.backend)
    else:
        node.half_open(1 << 20)
        tcp_peers.begin(node, tcp_peers.client, tcp_peers.vip, tcp_peers.backend)
    assert node.count(filled) == 2
    copy_connections(old, node.pinned, both=True)
    old.close()
    assert filter_bytes(node) == {1}


def test_an_entry_is_converted_field_by_field() -> None:
    old = Record((("a", "B"), ("", "3x"), ("b", "I"), ("gone", "Q"), ("changed", "H"), ("c", "4s")))
    new = Record(
        (("c", "4s"), ("added", "Q"), ("b", "I"), ("changed", "I"), ("a", "B"), ("", "3x"))
    )
    entry = old.pack({"a": 1, "b": 2, "gone": 3, "changed": 4, "c": b"five"})
    convert = converter(old, new)
    assert len(convert(entry)) == new.size
    assert new.unpack(convert(entry)) == {"c": b"five", "added": 0, "b": 2, "changed": 0, "a": 1}


def test_an_entry_of_the_same_layout_is_not_changed() -> None:
    record = Record((("a", "B"), ("", "3x"), ("b", "I")))
    assert converter(record, record)(b"\1abc\2\3\4\5") == b"\1abc\2\3\4\5"
