"""How a frontend's schedule leads a client to a backend."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.scheduling.extra import extra_entries
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule
from tests.packets.node import Node
from tests.packets.packet import address_port
from tests.packets.peers import Peers, address_of
from tests.specification import ipvs


class Scheduled:
    """A Service of some backends with a schedule, and its clients."""

    def __init__(self, node: Node, peers: Peers, backends: int = 5) -> None:
        self.node, self.peers = node, peers
        self.backends = [
            peers.with_port(peers.backend, 9000 + number) for number in range(backends)
        ]
        self._port = 20000

    def program(
        self, schedule: Schedule, table: Sequence[int] = (), *, reject: bool = False, first: int = 0
    ) -> None:
        """Write the Service. ``first``: slots before those of its policy, which it may not use."""
        others = [self.peers.with_port(self.peers.backend, 8000 + one) for one in range(first)]
        entries = tuple(Backend(*address_port(one)) for one in (*others, *self.backends))
        policy = Policy(first, len(self.backends), False, reject, len(table))
        policies = Policies(policy, policy, policy, schedule=schedule)
        number = PROTOCOLS[self.peers.protocol]
        frontend = Frontend(*address_port(self.peers.vip), number)
        run = struct.pack(f"={len(table)}H", *table)
        extra = extra_entries(((first, run),) if table else ())
        port = ServicePort("default", "web", "", number, self.peers.family)
        self.node.program({port: PortEntries(80, entries, {frontend: policies}, extra)})

    def connect(self, client: str = "", port: int = 0) -> int:
        """Open a connection; return the number of its backend. Each has another port."""
        self._port += 1
        source = self.peers.with_port(client or self.peers.client, port or self._port)
        out = self.node.ingress(self.peers.opening(source, self.peers.vip))
        return self.backends.index(self.peers.with_port(out.dst, out.payload.dport))

    def turns(self) -> int:
        """Return the count of the map of turns."""
        ((_, value),) = self.node.pinned.map("schedule_rounds").items()
        return int(struct.unpack("=QQ", value)[0])


@pytest.fixture
def scheduled(node: Node, peers: Peers) -> Scheduled:
    return Scheduled(node, peers)


@pytest.fixture
def clients(peers: Peers) -> list[tuple[str, int]]:
    """Addresses and ports of many clients outside of the cluster."""
    network = {4: "198.51.100.", 6: "2001:db8:1::"}[peers.family]
    return [(f"{network}{number}", 30000 + 7 * number) for number in range(1, 60)]


def test_backends_take_turns(scheduled: Scheduled) -> None:
    scheduled.program(Schedule.ROUND)
    assert [scheduled.connect() for _ in range(12)] == [*range(5), *range(5), 0, 1]
    assert scheduled.turns() == 12


def test_turns_follow_the_table(scheduled: Scheduled) -> None:
    table = [0, 0, 1, 0, 4]
    scheduled.program(Schedule.ROUND, table, first=3)
    assert [scheduled.connect() for _ in range(10)] == table * 2


def test_turns_go_on_where_they_were_when_endpoints_change(scheduled: Scheduled) -> None:
    scheduled.program(Schedule.ROUND)
    assert [scheduled.connect() for _ in range(3)] == [0, 1, 2]
    scheduled.backends.append(scheduled.peers.with_port(scheduled.peers.backend, 9100))
    scheduled.program(Schedule.ROUND)
    assert [scheduled.connect() for _ in range(4)] == [3, 4, 5, 0]


def test_turns_are_forgotten_with_another_schedule(scheduled: Scheduled, node: Node) -> None:
    scheduled.program(Schedule.ROUND)
    scheduled.connect()
    scheduled.program(Schedule.RANDOM)
    assert node.count("schedule_rounds") == 0
    scheduled.program(Schedule.ROUND)
    assert scheduled.connect() == 0


def test_a_known_connection_takes_no_turn(scheduled: Scheduled, peers: Peers, node: Node) -> None:
    scheduled.program(Schedule.ROUND)
    source = peers.with_port(peers.client, 20000)
    first = node.ingress(peers.opening(source, peers.vip))
    again = node.ingress(peers.opening(source, peers.vip))
    assert (again.dst, again.payload.dport) == (first.dst, first.payload.dport)
    assert scheduled.turns() == 1


def test_a_random_choice_has_the_weights_of_its_table(scheduled: Scheduled) -> None:
    """Six to one, of 700: the standard deviation is 9.3."""
    scheduled.program(Schedule.RANDOM, [0, 0, 0, 3, 0, 0, 0], first=2)
    counts = Counter(scheduled.connect() for _ in range(700))
    assert set(counts) == {0, 3}
    assert 50 < counts[3] < 150


@pytest.mark.parametrize("by_port", [False, True], ids=["by address", "by address and port"])
def test_a_client_has_the_place_that_ip_vs_sh_gives_it(
    scheduled: Scheduled, clients: list[tuple[str, int]], by_port: bool
) -> None:
    table = [(7 * number + number // 5) % 5 for number in range(256)]
    scheduled.program(Schedule.SOURCE_PORT if by_port else Schedule.SOURCE, table)
    for client, port in clients:
        slot = ipvs.sh_hash(pack(client), port if by_port else 0)
        assert scheduled.connect(client, port) == table[slot]


@pytest.mark.parametrize("by_port", [False, True], ids=["by address", "by address and port"])
@pytest.mark.parametrize("places", [4093, 131071])
def test_a_client_has_the_place_that_ip_vs_mh_gives_it(
    scheduled: Scheduled, clients: list[tuple[str, int]], by_port: bool, places: int
) -> None:
    if places > 4093:
        clients = clients[:5]
    table = [(7 * number + number // 5) % 5 for number in range(places)]
    scheduled.program(Schedule.MAGLEV_PORT if by_port else Schedule.MAGLEV, table)
    for client, port in clients:
        slot = ipvs.mh_hash(pack(client), port if by_port else 0) % places
        assert scheduled.connect(client, port) == table[slot]


def test_all_clients_of_an_address_have_the_place_that_ip_vs_dh_gives_it(
    scheduled: Scheduled, clients: list[tuple[str, int]], peers: Peers
) -> None:
    table = [number % 5 for number in range(256)]
    scheduled.program(Schedule.DESTINATION, table)
    slot = ipvs.dh_hash(pack(address_of(peers.vip)))
    assert {scheduled.connect(*client) for client in clients} == {table[slot]}


def test_without_a_table_a_hash_is_shared_out_among_the_slots(
    scheduled: Scheduled, clients: list[tuple[str, int]]
) -> None:
    scheduled.program(Schedule.SOURCE, first=4)
    for client, port in clients:
        assert scheduled.connect(client, port) == ipvs.sh_hash(pack(client), 0) % 5


@pytest.mark.parametrize("reject", [False, True], ids=["dropped", "refused"])
def test_a_client_whose_place_has_no_slot_gets_no_backend(
    scheduled: Scheduled, peers: Peers, node: Node, reject: bool
) -> None:
    scheduled.program(Schedule.SOURCE, [NO_SLOT] * 256, reject=reject)
    before = node.counter("rejected__no_endpoints"), node.counter("dropped__no_endpoints")
    node.run("ingress", peers.opening(peers.client, peers.vip))
    after = node.counter("rejected__no_endpoints"), node.counter("dropped__no_endpoints")
    assert (after[0] - before[0], after[1] - before[1]) == (reject, not reject)


def test_another_schedule_leaves_connections_alone(
    scheduled: Scheduled, peers: Peers, node: Node
) -> None:
    scheduled.program(Schedule.ROUND)
    source = peers.with_port(peers.client, 20000)
    first = node.ingress(peers.opening(source, peers.vip))
    for schedule in (Schedule.MAGLEV, Schedule.RANDOM, Schedule.SOURCE):
        scheduled.program(schedule)
        again = node.ingress(peers.opening(source, peers.vip))
        assert (again.dst, again.payload.dport) == (first.dst, first.payload.dport)
