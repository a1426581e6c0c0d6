"""A backend on trial gets one connection at a time, until it is known how that attempt ends."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.datapath.maps.backend_outcomes import BackendOutcomes, QuarantinedMap
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.scheduling.extra import extra_entries
from bpfsvc.services.scheduling.quarantine import Outcome
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.node import Node
from tests.packets.packet import address_port, frame, tcp
from tests.packets.peers import TCP_PEERS, Peers, address_of

FAILED, WORKED = Outcome(1, 0), Outcome(0, 1)
SECOND = 1_000_000_000


_NEW_ATTEMPT = 3
"""Seconds after a reset by the client: its next SYN does not go on with the attempt before."""


class Tried:
    """A Service of one backend that is well, and others that are in quarantine or on trial."""

    def __init__(self, node: Node, peers: Peers) -> None:
        self.node, self.peers = node, peers
        self.well = peers.backend
        self.sick = [peers.with_port(peers.other_backend, 8080 + number) for number in range(2)]
        self.masquerade = False
        self.shown = QuarantinedMap(node.pinned)
        self._outcomes = BackendOutcomes(node.pinned)

    def program(
        self,
        used: Sequence[str],
        *behind: str,
        trials: int = 0,
        schedule: Schedule = Schedule.RANDOM,
        affinity: int = 0,
        watched: bool = True,
    ) -> None:
        """Write the Service; ``trials`` backends behind those that are used are on trial."""
        places = map(address_port, (*used, *behind))
        policy = Policy(0, len(used), self.masquerade, False, 0, trials)
        policies = Policies(policy, policy, policy, affinity, schedule=schedule, watched=watched)
        weights = ((0, (100,) * len(used)),) if schedule.counts else ()
        number = PROTOCOLS["TCP"]
        port = ServicePort("default", "web", "", number, self.peers.family)
        frontend = Frontend(*address_port(self.peers.vip), number)
        extra = extra_entries((), weights)
        entries = tuple(Backend(*number) for number in places)
        self.node.program({port: PortEntries(80, entries, {frontend: policies}, extra)})

    def on_trial(self, number: int = 1, schedule: Schedule = Schedule.RANDOM) -> None:
        """Have some backends be on trial."""
        sick = self.sick[:number]
        self.program([self.well], *sick, trials=number, schedule=schedule)
        self.shown.set({self.counters(port): None for port in sick})

    def away(self, *used: str) -> None:
        """Have the first of them be in quarantine; ``used``: those that are chosen meanwhile."""
        self.program(used or [self.well], self.sick[0])
        self.shown.set({self.counters(): time.monotonic() + 30})

    def counters(self, backend: str = "") -> int:
        (entries,) = self.node.applied_state.of(("default", "web")).values()
        return entries.counters()[address_port(backend or self.sick[0])]

    def client(self, number: int) -> str:
        """Return a client outside; each has an address of its own."""
        at = address_of(self.peers.external).rpartition(":" if self.peers.family == 6 else ".")
        number = 100 + number
        last = f"{number:x}" if self.peers.family == 6 else str(number)
        return self.peers.with_port(f"{at[0]}{at[1]}{last}", 40_000)

    def open(self, client: int = 0) -> str:
        """Send the SYN of a client; return the backend."""
        out = self.node.forward(tcp(self.client(client), self.peers.vip))
        self.seen = self.peers.with_port(out.src, out.payload.sport)
        return self.peers.with_port(out.dst, out.payload.dport)

    def send(self, flags: str, client: int = 0) -> None:
        self.node.forward(tcp(self.client(client), self.peers.vip, flags))

    def answer(self, flags: str, backend: str = "") -> None:
        """Send a packet of a backend to the client that was there last."""
        self.node.forward(tcp(backend or self.sick[0], self.seen, flags))

    def later(self, seconds: float, name: str = "connections", field: str = "created") -> None:
        """Make the entries of a map older."""
        record, table = self.node.pinned.layout.maps[name].value, self.node.pinned.map(name)
        for key, value in list(table.items()):
            entry = record.unpack(value)
            if before := int(entry[field]):
                entry[field] = before - int(seconds * SECOND)
                table.update(key, record.pack(entry))

    def taken(self) -> dict[int, Outcome]:
        """Return what has been noted since the last call."""
        return self._outcomes.take()

    def tries(self, clients: range) -> int:
        """Return how many of some new clients get a backend that is on trial."""
        return sum(self.open(client) != self.well for client in clients)


@pytest.fixture(params=[False, True], ids=["plain", "masqueraded"])
def tried(request: pytest.FixtureRequest, node: Node, tcp_peers: Peers) -> Tried:
    made = Tried(node, tcp_peers)
    made.masquerade = request.param
    return made


@pytest.fixture
def plain(node: Node, tcp_peers: Peers) -> Tried:
    """For what does not depend on a masquerade."""
    return Tried(node, tcp_peers)


def test_the_next_connection_is_the_trial_and_exactly_one_of_many(tried: Tried) -> None:
    tried.on_trial()
    assert tried.open(0) == tried.sick[0]
    assert tried.tries(range(1, 30)) == 0


@pytest.mark.parametrize("schedule", [*Schedule])
def test_by_every_scheduler_exactly_one_tries(node: Node, schedule: Schedule) -> None:
    plain = Tried(node, TCP_PEERS[0])
    plain.on_trial(schedule=schedule)
    assert plain.tries(range(10)) == 1
    assert plain.taken() == {}


def test_on_two_cpus_at_once_exactly_one_tries(plain: Tried) -> None:
    frames = [frame(tcp(plain.client(number), plain.peers.vip)) for number in range(40)]
    at = 30 if plain.peers.family == 4 else 38
    length = 4 if plain.peers.family == 4 else 16

    def open_(frame: bytes) -> bytes:
        return plain.node.run_frame("ingress", frame)[1][at : at + length]

    for _ in range(10):
        plain.on_trial()
        plain.shown.set({})
        plain.shown.set({plain.counters(): None})
        with ThreadPoolExecutor(4) as pool:
            counts = Counter(pool.map(open_, frames))
        sick = counts[address_port(plain.sick[0])[0][-length:]]
        assert sick == 1, counts
        plain.node.delete_entries("connections", "new_connections")


@pytest.mark.parametrize("flags", ["RA", "silence"])
def test_a_trial_that_fails_keeps_all_others_out(tried: Tried, flags: str) -> None:
    tried.on_trial()
    assert tried.open(0) == tried.sick[0]
    if flags == "silence":
        tried.later(1)
        assert tried.open(0) == tried.well, "its client goes elsewhere, too"
    else:
        tried.answer(flags)
    assert tried.taken() == {tried.counters(): FAILED}
    assert tried.tries(range(1, 20)) == 0
    tried.away()
    assert tried.tries(range(20, 40)) == 0
    tried.on_trial()
    assert tried.tries(range(40, 60)) == 1


def test_a_trial_that_succeeds_says_so_and_lets_the_next_one_try(tried: Tried) -> None:
    tried.on_trial()
    assert tried.open(0) == tried.sick[0]
    tried.answer("SA")
    tried.send("A", 0)
    assert tried.taken() == {tried.counters(): WORKED}
    assert tried.tries(range(1, 20)) == 1


def test_a_trial_goes_on_when_its_backend_is_no_longer_in_quarantine(tried: Tried) -> None:
    """The agent may have taken it out while the answer was on its way."""
    tried.on_trial()
    assert tried.open(0) == tried.sick[0]
    tried.shown.set({})
    tried.answer("SA")
    assert tried.node.count("quarantined") == 0
    tried.send("A", 0)
    assert tried.taken() == {tried.counters(): WORKED}


def test_an_answer_that_is_not_acknowledged_lets_the_next_one_try(plain: Tried) -> None:
    """So a flood of SYNs cannot keep a backend out."""
    plain.on_trial()
    for client in range(5):
        assert plain.open(client) == plain.sick[0]
        plain.answer("SA")
        plain.answer("SA")
    assert plain.tries(range(5, 20)) == 1
    assert plain.taken() == {}


def test_a_client_that_gives_up_lets_the_next_one_try(tried: Tried) -> None:
    tried.on_trial()
    for client in range(3):
        assert tried.open(client) == tried.sick[0]
        assert tried.tries(range(10 * client + 10, 10 * client + 19)) == 0
        tried.send("R", client)
    assert tried.taken() == {}


def test_of_a_client_that_is_gone_the_trial_ends_after_its_time(plain: Tried) -> None:
    plain.on_trial()
    for client in range(3):
        assert plain.open(client) == plain.sick[0]
        plain.later(3.0, "quarantined", "tried")
        assert plain.tries(range(10 * client + 10, 10 * client + 19)) == 0
        plain.later(2.1, "quarantined", "tried")
        plain.later(5.1)


def test_who_has_taken_too_long_does_not_end_the_trial_of_the_next(plain: Tried) -> None:
    plain.on_trial()
    assert plain.open(0) == plain.sick[0]
    plain.later(5.1, "quarantined", "tried")
    plain.later(5.1)
    assert plain.open(1) == plain.sick[0]
    plain.send("R", 0)
    assert plain.tries(range(2, 20)) == 0
    plain.send("R", 1)
    assert plain.tries(range(20, 40)) == 1


def test_what_the_agent_writes_of_others_leaves_a_trial_as_it_is(plain: Tried) -> None:
    plain.on_trial()
    assert plain.open(0) == plain.sick[0]
    plain.shown.set({plain.counters(): None, 999: 17.0})
    plain.shown.set({plain.counters(): None})
    assert plain.tries(range(1, 20)) == 0


def test_of_two_on_trial_each_gets_one(plain: Tried) -> None:
    plain.on_trial(2)
    counts = Counter(plain.open(number) for number in range(60))
    assert counts == {plain.well: 58, plain.sick[0]: 1, plain.sick[1]: 1}


def test_a_backend_that_is_only_out_is_not_tried(plain: Tried) -> None:
    plain.program([plain.well], plain.sick[0], trials=1)
    assert plain.tries(range(10)) == 0, "the entry of people is written before"
    plain.shown.set({plain.counters(): time.monotonic() + 30})
    assert plain.tries(range(10, 20)) == 0


def test_a_client_with_affinity_to_another_backend_stays_there(plain: Tried) -> None:
    plain.program([plain.well], plain.sick[0], affinity=60)
    assert plain.open(0) == plain.well
    plain.program([plain.well], plain.sick[0], trials=1, affinity=60)
    plain.shown.set({plain.counters(): None})
    plain.send("R", 0)
    plain.node.age(_NEW_ATTEMPT)
    assert plain.open(0) == plain.well
    assert plain.open(1) == plain.sick[0]


def test_a_client_with_affinity_to_the_backend_on_trial_gets_another_one_but_once(
    plain: Tried,
) -> None:
    plain.program(plain.sick[:1], plain.well, affinity=60)
    assert plain.open(0) == plain.sick[0]
    plain.program([plain.well], plain.sick[0], trials=1, affinity=60)
    plain.shown.set({plain.counters(): None})
    plain.send("R", 0)
    plain.node.age(_NEW_ATTEMPT)
    assert plain.open(0) == plain.sick[0]
    plain.answer("RA")
    assert plain.open(0) == plain.well


def test_at_a_node_port_too(node: Node, tcp_peers: Peers) -> None:
    policy = Policy(0, 1, True, False, 0, 1)
    policies = Policies(policy, policy, policy, watched=True)
    backends = [tcp_peers.backend, tcp_peers.other_backend]
    tcp_peers.service(node, backends, node_port=30080, policies=policies)
    (service,) = node.applied_state.of(("default", "web")).values()
    shown = QuarantinedMap(node.pinned)
    shown.set({service.counters()[address_port(tcp_peers.other_backend)]: None})
    to = tcp_peers.on_node(30080)
    clients = [tcp_peers.with_port(tcp_peers.external, 40_000 + number) for number in range(10)]
    seen = [node.forward(tcp(client, to)).dst for client in clients]
    sick, well = (address_of(backend) for backend in reversed(backends))
    assert seen == [sick, *[well] * 9]


def test_the_trial_is_in_the_load_and_the_counts_of_its_backend(plain: Tried) -> None:
    plain.on_trial(schedule=Schedule.LC)
    assert plain.open(0) == plain.sick[0]
    loads = plain.node.pinned.map("backend_loads")
    raw = loads.lookup(struct.pack("=I", plain.counters())) or b""
    assert struct.unpack_from("=Q", raw) == (1,)
