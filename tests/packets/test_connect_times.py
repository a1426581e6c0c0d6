"""How long backends took to answer the SYNs of sockets, as the tracepoint of their states tells it.

And which segments that sockets send again are failures of a backend. The ``struct sock`` that the
programs read stands in the memory of a map.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader import creation
from bpfsvc.datapath.maps.layout import MapLayout, Record
from tests.packets.dropped import address_of_value, run_tracepoint
from tests.packets.node import Node
from tests.packets.packet import address_port
from tests.packets.peers import TCP_PEERS

_ESTABLISHED, _SYN_SENT, _CLOSED = 1, 2, 7
"""States of TCP."""
_START = struct.Struct("=4s4sI2sHHB")
"""``struct socket_start``: the ends, a hash, the port of the other one, the own one, the family.

Behind that the kernel has the state.
"""
_START_SIZE = 24
_AF_INET, _SIZE, _MMAPABLE = 2, 4096, 1 << 10
_LAST = 15
"""Of the buckets."""
_SHORTEST_US = 64
"""The end of the first one."""
BACKEND = struct.pack("=I", 7)
"""The index of the backend of a socket that has a name."""


class Sockets:
    """A socket of a client that is connected to a frontend."""

    def __init__(self, node: Node, memory: Map) -> None:
        self._node, self._memory = node, memory
        self._address = address_of_value(memory)
        self.cookie = 0
        """By which its name would be found; 0: it has none."""

    def connects(
        self, client: str, frontend: str, seconds: float, state: int = _ESTABLISHED
    ) -> None:
        """Have the socket send its SYN so long ago, and get the answer, or be given up."""
        self.begins(client, frontend)
        begun = time.monotonic_ns() - int(seconds * 1e9)
        self.change_place(begun=begun)
        self.leaves_syn_sent(state)

    def begins(self, client: str, frontend: str) -> None:
        """Have the socket send its SYN."""
        self._write(client, frontend, _SYN_SENT)
        program = self._node.pinned.program("socket_state")
        run_tracepoint(program, self._address, _CLOSED, _SYN_SENT)

    def sends_again(self, client: str, frontend: str, state: int) -> None:
        """Have the socket send a segment again in a state."""
        self._write(client, frontend, state)
        run_tracepoint(self._node.pinned.program("syn_again"), self._address)

    def _write(self, client: str, frontend: str, state: int) -> None:
        (own, own_port), (to, port) = address_port(client), address_port(frontend)
        ends = to[12:], own[12:], 0, port.to_bytes(2, "big"), own_port
        start = _START.pack(*ends, _AF_INET, state).ljust(_START_SIZE, b"\0")
        # Wherever this kernel has the cookie.
        cookies = struct.pack("=Q", self.cookie) * ((_SIZE - _START_SIZE) // 8)
        self._memory.update(bytes(4), start + cookies)

    def leaves_syn_sent(self, state: int) -> None:
        """Have a program see the state that follows the SYN."""
        program = self._node.pinned.program("socket_state")
        run_tracepoint(program, self._address, _SYN_SENT, state)

    def change_place(self, **fields: int) -> None:
        """Change fields of what is known of the socket while it connects."""
        table = self._node.pinned.map("connecting")
        record = self._node.pinned.layout.maps["connecting"].value
        entry = record.unpack(table.lookup(self._place) or b"")
        assert entry["socket"] == self._number
        table.update(self._place, record.pack({**entry, **fields}))

    def forget(self) -> None:
        """Forget a socket of an earlier test that had the same place."""
        table = self._node.pinned.map("connecting")
        table.update(self._place, bytes(table.value_size))

    @property
    def _number(self) -> int:
        """By which the programs know it."""
        return self._address >> 6 & 0xFFFFFFFF

    @property
    def _place(self) -> bytes:
        """The key in the map ``connecting``."""
        table = self._node.pinned.map("connecting")
        return struct.pack("=I", (self._number ^ self._number >> 14) & table.max_entries - 1)

    def counted(self) -> dict[int, int]:
        """Return how many are in each bucket that is not empty, of all backends."""
        found: dict[int, int] = {}
        for _, value in self._node.pinned.map("connect_times").items():
            for bucket, number in enumerate(struct.unpack_from(f"={_LAST + 1}Q", value)):
                if number:
                    found[bucket] = found.get(bucket, 0) + number
        return found


@pytest.fixture
def sockets(node: Node) -> Iterator[Sockets]:
    layout = MapLayout(
        *("array", Record((("key", "I"),)), Record((("memory", f"{_SIZE}s"),)), 1, _MMAPABLE)
    )
    memory = Map(creation.create_map("socket", layout), "socket")
    node.pinned.map("connect_times").replace({})
    made = Sockets(node, memory)
    made.forget()
    yield made
    node.pinned.map("connect_times").replace({})
    memory.close()


@contextmanager
def named(node: Node, sockets: Sockets, flags: int = 0) -> Iterator[None]:
    """Note that the call of the socket was translated; ``flags`` are beside the backend."""
    place, record = node.pinned.map("peer_names"), node.pinned.layout.maps["peer_names"].value
    sockets.cookie = (1 << 40) + 3
    key = struct.pack("=I", sockets.cookie % place.max_entries)
    (backend,) = struct.unpack("=I", BACKEND)
    place.update(key, record.pack({"socket": sockets.cookie, "counters": backend | flags}))
    try:
        yield
    finally:
        place.update(key, bytes(place.value_size))


def test_each_bucket_ends_at_twice_the_time_of_the_one_before(node: Node, sockets: Sockets) -> None:
    """The sum tells how long each attempt has taken; that is at least what it was to take."""
    client, vip, *_ = TCP_PEERS[0].connected(node)
    times = node.pinned.map("connect_times")
    for bucket in range(_LAST):
        times.replace({})
        sockets.connects(client, vip, 1.2e-6 * _SHORTEST_US * (1 << bucket) / 2)
        ((_, value),) = times.items()
        (took,) = struct.unpack_from("=Q", value, 8 * (_LAST + 1))
        assert sockets.counted() == {(took // _SHORTEST_US).bit_length(): 1}, took


@pytest.mark.parametrize("seconds", [2.2, 3.0, 250.0])
def test_what_takes_longer_than_two_seconds_is_in_the_last_bucket(
    node: Node, sockets: Sockets, seconds: float
) -> None:
    client, vip, *_ = TCP_PEERS[0].connected(node)
    sockets.connects(client, vip, seconds)
    assert sockets.counted() == {_LAST: 1}
    ((_, value),) = node.pinned.map("connect_times").items()
    (total,) = struct.unpack_from("=Q", value, 8 * (_LAST + 1))
    assert seconds - 0.1 < total / 1e6 < seconds + 5


def test_an_answer_that_the_programs_of_two_builds_see_is_counted_once(
    node: Node, sockets: Sockets
) -> None:
    client, vip, *_ = TCP_PEERS[0].connected(node)
    sockets.connects(client, vip, 3)
    sockets.leaves_syn_sent(_ESTABLISHED)
    assert sockets.counted() == {_LAST: 1}


def test_an_answer_to_a_socket_whose_place_another_one_has_is_not_counted(
    node: Node, sockets: Sockets
) -> None:
    client, vip, *_ = TCP_PEERS[0].connected(node)
    sockets.begins(client, vip)
    sockets.change_place(socket=1)
    sockets.leaves_syn_sent(_ESTABLISHED)
    assert sockets.counted() == {}


def test_an_attempt_that_is_given_up_is_not_counted(node: Node, sockets: Sockets) -> None:
    client, vip, *_ = TCP_PEERS[0].connected(node)
    sockets.connects(client, vip, 3, _CLOSED)
    assert sockets.counted() == {}


def test_the_time_of_a_backend_for_which_there_is_no_room_is_not_counted(
    node: Node, sockets: Sockets
) -> None:
    client, vip, *_ = TCP_PEERS[0].connected(node)
    table = node.pinned.map("connect_times")
    others = [struct.pack("=I", 1 << 20 | number) for number in range(table.max_entries)]
    table.update_many([(key, bytes(table.value_size)) for key in others])
    sockets.connects(client, vip, 3)
    assert sockets.counted() == {}
    table.delete_many(others)
    sockets.connects(client, vip, 3)
    assert sockets.counted() == {_LAST: 1}


def test_the_time_of_a_socket_whose_call_was_translated_is_that_of_the_backend_it_got(
    node: Node, sockets: Sockets
) -> None:
    """No connection has an entry then; beside the backend, its place has flags."""
    peers = TCP_PEERS[0]
    flags = ~node.pinned.layout.constant("PEER_COUNTERS") & 0xFFFFFFFF
    with named(node, sockets, flags):
        sockets.connects(peers.client, peers.backend, 3)
    ((backend, _),) = node.pinned.map("connect_times").items()
    assert (backend, sockets.counted()) == (BACKEND, {_LAST: 1})


@pytest.mark.parametrize(
    ("state", "failures"), [(_SYN_SENT, {BACKEND}), (_ESTABLISHED, set())], ids=["SYN", "data"]
)
def test_of_what_a_socket_sends_again_only_the_syn_is_a_failure_of_its_backend(
    node: Node, sockets: Sockets, state: int, failures: set[bytes]
) -> None:
    peers = TCP_PEERS[0]
    with named(node, sockets):
        sockets.sends_again(peers.client, peers.backend, state)
    assert {key for key, _ in node.pinned.map("backend_failures").items()} == failures
