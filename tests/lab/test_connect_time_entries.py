"""Times to connect where an entry is at another place than most are, where one is old, or full."""

from __future__ import annotations

import itertools
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.known_pods import by_packets
from tests.lab.node_calls import (
    BACK,
    BACK_PORT,
    answering,
    node_calls_testbed,
    stopped_agent,
    stream,
)
from tests.lab.test_quarantine import SILENT, broken
from tests.lab.test_traffic_collisions import forget
from tests.lab.testbed import ONE, Testbed, at

PORTS = itertools.count(44_000)
SECOND = 1_000_000_000
BUCKETS = 16
MANY = 1 << 30
"""More half-open connections than are held where most are."""


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """The lab of calls of the node."""
    with node_calls_testbed() as testbed:
        yield testbed


def times(pinned: Pinned) -> tuple[list[int], int]:
    """Return how many connections each bucket counts, over all backends, and their microseconds."""
    values = [
        struct.unpack(f"={BUCKETS + 1}Q", value) for _, value in pinned.map("connect_times").items()
    ]
    buckets = [sum(value[bucket] for value in values) for bucket in range(BUCKETS)]
    return buckets, sum(value[BUCKETS] for value in values)


def forget_times(pinned: Pinned) -> None:
    table = pinned.map("connect_times")
    table.delete_many([key for key, _ in table.items()])


@contextmanager
def stopped(testbed: Testbed) -> Iterator[Pinned]:
    """Stop the agent, with no time and no connection of before.

    Sockets of other labs on this machine are seen, too, and may have addresses and a port of one.
    """
    with stopped_agent(testbed) as pinned:
        for name in ("connections", "new_connections"):
            table = pinned.map(name)
            table.delete_many([key for key, _ in table.items()])
        forget_times(pinned)
        yield pinned


@contextmanager
def many_half_open(pinned: Pinned) -> Iterator[None]:
    """Have new connections be held where the kernel evicts."""
    table = pinned.map("half_open")
    table.update(bytes(4), struct.pack("=q", MANY))
    try:
        yield
    finally:
        table.update(bytes(4), bytes(8))


def test_a_connect_by_tc_is_counted_also_among_many_half_open_connections(
    running: Testbed, family: int
) -> None:
    """Then its entry is where the kernel evicts."""
    with stopped(running) as pinned:
        with (
            many_half_open(pinned),
            stream(running.pod, family, source=("", next(PORTS))) as made,
        ):
            made.connect((ONE[2].vip(family), 80))
            assert answering(made) == running.lab.pods[2].name
            own = at(running.pod.address(family), made.getsockname()[1])
            assert by_packets(running.node, own)
        assert sum(times(pinned)[0]) == 1


def test_a_connection_from_a_backends_port_to_its_client_is_not_counted(
    running: Testbed, family: int
) -> None:
    """Both have forgotten the client's connection, and the entries of that are still there."""
    client, backend = running.lab.pods[:2]
    port = next(PORTS)
    with stopped(running) as pinned:
        with stream(backend, family, source=("", BACK_PORT)) as listener:
            listener.listen()
            made = stream(client, family, source=("", port))
            made.connect((BACK.vip(family), 80))
            accepted, _ = listener.accept()
        assert by_packets(running.node, at(client.address(family), port))
        forget(accepted)
        forget(made)
        forget_times(pinned)
        with (
            stream(client, family, source=("", port)) as listener,
            stream(backend, family, source=("", BACK_PORT)) as back,
        ):
            listener.listen()
            back.connect((client.address(family), port))
            assert times(pinned) == ([0] * BUCKETS, 0)
            accepted, peer = listener.accept()
            assert peer[:2] == (BACK.vip(family), 80)
            accepted.close()


def test_a_connect_that_took_minutes_is_in_the_last_bucket(running: Testbed, family: int) -> None:
    """Here all sockets began to connect earlier than they did.

    It is not known which entry is the socket's, and sockets of other labs may have begun since.
    """
    minutes = 100 * SECOND
    with stopped(running) as pinned, stream(running.node, family) as made:
        table, record = pinned.map("connecting"), pinned.layout.maps["connecting"].value
        with broken(running.lab.pods[2], SILENT):
            made.setblocking(False)
            made.connect_ex((ONE[2].vip(family), 80))
            rows = [(key, record.unpack(value)) for key, value in table.items() if any(value)]
            for key, row in rows:
                if row["begun"]:
                    table.update(key, record.pack(row | {"begun": int(row["begun"]) - minutes}))
        writable = select.poll()  # select() fails in processes with more than a thousand open files
        writable.register(made, select.POLLOUT)
        assert writable.poll(1000 * stretched(4))
        made.settimeout(stretched(2))
        assert answering(made) == running.lab.pods[2].name
        buckets, microseconds = times(pinned)
    assert buckets == [0] * (BUCKETS - 1) + [1]
    assert 100_000_000 < microseconds < 140_000_000


def test_a_connect_that_finds_no_room_is_not_counted(running: Testbed, family: int) -> None:
    with stopped(running) as pinned:
        table = pinned.map("connect_times")
        others = [(1 << 31) + number for number in range(table.max_entries)]
        table.update_many((struct.pack("=I", n), bytes(table.value_size)) for n in others)
        try:
            with stream(running.node, family) as made:
                made.connect((ONE[2].vip(family), 80))
                assert answering(made) == running.lab.pods[2].name
            assert times(pinned) == ([0] * BUCKETS, 0)
        finally:
            forget_times(pinned)
        with stream(running.node, family) as made:
            made.connect((ONE[2].vip(family), 80))
        assert sum(times(pinned)[0]) == 1
