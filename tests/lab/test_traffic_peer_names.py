"""The names of pods' TCP sockets: getpeername() returns the frontend, by ``bpf/maps/peer_names.h``.

A socket has the place of its cookie there while it is open, unless that place is another socket's.
One connection a second has to prove what is known of the pod: its socket has storage, too.
"""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.devtools.lab.dial import OpenConnection, ask, connect, disconnect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.server import endpoint_text
from tests.lab.known_pods import by_packets, make_known, opened
from tests.lab.testbed import ONE, Testbed, at, built_testbed, host, objects

SO_COOKIE = 57
"""The number of that socket option (asm/socket.h)."""

ANOTHER = 2**64 - 1
"""A cookie that no socket has so far."""


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are known to the hooks."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        each = (objects(one, [pod]) for one, pod in zip(ONE, testbed.lab.pods, strict=True))
        testbed.cluster.put("services", *itertools.chain.from_iterable(each))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


def names(node: LabNode) -> dict[int, str]:
    """Return the frontends that sockets have a place for, by the cookie of the socket."""
    with opened(node) as pinned:
        record = pinned.layout.maps["peer_names"].value
        rows = [record.unpack(value) for _, value in pinned.map("peer_names").items() if any(value)]
    return {
        int(row["socket"]): at(unpack(bytes(row["frontend"])), int(row["frontend_port"]))
        for row in rows
        if row["socket"]
    }


def cookie(made: socket.socket) -> int:
    return int.from_bytes(made.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)


def peer(made: socket.socket) -> str:
    return endpoint_text(made.getpeername()[:2])


@contextmanager
def place_of(node: LabNode, made: socket.socket) -> Iterator[Callable[..., bool]]:
    """Yield what writes other fields into the place of a socket; the fields come back."""
    with opened(node) as pinned:
        table, record = pinned.map("peer_names"), pinned.layout.maps["peer_names"].value
        key = (cookie(made) % table.max_entries).to_bytes(4, sys.byteorder)
        noted = table.lookup(key) or b""
        fields = record.unpack(noted)
        yield lambda **changed: table.update(key, record.pack(fields | changed))
        table.update(key, noted)


def has_storage(testbed: Testbed, made: socket.socket) -> bool:
    """Return true if a socket that has a place knows its frontend by its storage, too."""
    frontend = peer(made)
    with place_of(testbed.node, made) as write:
        write(backend_port=0)
        return peer(made) == frontend


def connect_until_named(testbed: Testbed, family: int) -> OpenConnection:
    """Connect a pod to ONE[2], by a socket that needs no storage for that."""
    seen: list[OpenConnection] = []

    def is_named() -> bool:
        made = connect(testbed.pod, ONE[2].vip(family), 80)
        named = cookie(made.socket) in names(testbed.node)
        if named and not has_storage(testbed, made.socket):
            seen.append(made)
        else:
            made.close()
        return bool(seen)

    wait(is_named, "a connection needs no storage")
    return seen[0]


def test_a_connection_has_a_name_until_it_is_closed(known_testbed: Testbed, family: int) -> None:
    with connect_until_named(known_testbed, family) as made:
        own, frontend = cookie(made.socket), at(ONE[2].vip(family), 80)
        assert peer(made.socket) == frontend
        assert names(known_testbed.node)[own] == frontend
        answer = made.who()
        assert (answer.pod, host(answer.peer)) == (
            known_testbed.lab.pods[2].name,
            known_testbed.pod.address(family),
        )
        assert not by_packets(known_testbed.node, answer.peer)
    assert own not in names(known_testbed.node)


def test_a_connection_that_is_reset_by_its_client_gives_its_place_back(
    known_testbed: Testbed, family: int
) -> None:
    made = connect_until_named(known_testbed, family)
    own = cookie(made.socket)
    made.reset()
    assert own not in names(known_testbed.node)


def test_a_socket_that_connects_to_a_backend_itself_has_its_name(
    known_testbed: Testbed, family: int
) -> None:
    """After a connection through the Service of that backend."""
    backend = known_testbed.lab.pods[2].address(family)
    with connect_until_named(known_testbed, family) as made:
        disconnect(made.socket)
        made.socket.connect((backend, 8080))
        assert peer(made.socket) == at(backend, 8080)
        assert cookie(made.socket) not in names(known_testbed.node)


def test_a_socket_that_connects_to_the_pod_itself_has_its_name(
    known_testbed: Testbed, family: int
) -> None:
    """To the unspecified address, by which connect(2) means loopback."""
    anywhere, loopback = ("0.0.0.0", "127.0.0.1") if family == 4 else ("::", "::1")
    with (
        connect_until_named(known_testbed, family) as made,
        known_testbed.pod.socket(made.socket.family) as listener,
    ):
        listener.bind((loopback, 0))
        listener.listen()
        port = listener.getsockname()[1]
        disconnect(made.socket)
        made.socket.connect((anywhere, port))
        assert peer(made.socket) == at(loopback, port)


def replaced(address: bytes, at_byte: int) -> bytes:
    """Return an address with another byte."""
    return address[:at_byte] + bytes([address[at_byte] ^ 1]) + address[at_byte + 1 :]


def test_a_name_is_that_of_one_backend(known_testbed: Testbed, family: int) -> None:
    """A socket may have connected elsewhere while no program was attached."""
    backend = known_testbed.lab.pods[2].address(family)
    others = [replaced(pack(backend), byte) for byte in (0, 15)]
    with connect_until_named(known_testbed, family) as made:
        with place_of(known_testbed.node, made.socket) as write:
            for other in others:
                write(backend=other)
                assert peer(made.socket) == at(backend, 8080)
            write(backend_port=81)
            assert peer(made.socket) == at(backend, 8080)
        assert peer(made.socket) == at(ONE[2].vip(family), 80)


def test_a_socket_that_connects_to_another_service_has_its_name(
    known_testbed: Testbed, family: int
) -> None:
    with connect_until_named(known_testbed, family) as made:
        for one in (ONE[3], ONE[2], ONE[3]):
            disconnect(made.socket)
            made.socket.connect((one.vip(family), 80))
            assert peer(made.socket) == at(one.vip(family), 80)
        assert made.who().pod == known_testbed.lab.pods[3].name
        own = cookie(made.socket)
        assert names(known_testbed.node).get(own) in {None, at(ONE[3].vip(family), 80)}
    assert own not in names(known_testbed.node)


@pytest.fixture
def filled_testbed(known_testbed: Testbed) -> Iterator[Testbed]:
    """The lab, while another socket has each place."""
    with opened(known_testbed.node) as pinned:
        table = pinned.map("peer_names")
        taken = pinned.layout.maps["peer_names"].value.pack({"socket": ANOTHER})
        keys = [number.to_bytes(4, sys.byteorder) for number in range(table.max_entries)]
        table.update_many((key, taken) for key in keys)
        yield known_testbed
        left = {value for _, value in table.items()}
        table.update_many((key, bytes(table.value_size)) for key in keys)
        assert left == {taken}


def test_where_the_place_is_anothers_the_name_is_in_the_storage(
    filled_testbed: Testbed, family: int
) -> None:
    """And the other one keeps it."""
    for _ in range(4):
        with connect(filled_testbed.pod, ONE[2].vip(family), 80) as made:
            assert peer(made.socket) == at(ONE[2].vip(family), 80)
            assert not by_packets(filled_testbed.node, made.who().own)


def test_sockets_of_the_node_have_a_place_until_they_end_and_datagrams_have_none(
    known_testbed: Testbed, family: int
) -> None:
    """The programs that count failed connections know a socket by its cookie only."""
    vip = ONE[2].vip(family)
    ask(known_testbed.pod, vip, 80, "udp", connected=False)
    for _ in range(3):
        with connect(known_testbed.node, vip, 80) as made:
            assert peer(made.socket) == at(vip, 80)
            shown = f"[{vip}]:80" if family == 6 else f"{vip}:80"
            assert [*names(known_testbed.node).values()] == [shown]
        assert names(known_testbed.node) == {}


def test_an_mptcp_socket_has_no_place(known_testbed: Testbed, family: int) -> None:
    """The hook sees its first path, and getpeername() asks the socket itself."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    for _ in range(3):
        with known_testbed.pod.socket(domain, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as made:
            made.settimeout(stretched(2))
            made.connect((ONE[2].vip(family), 80))
            assert peer(made) == at(ONE[2].vip(family), 80)
            assert names(known_testbed.node) == {}
