"""How attempts to connect end, as the programs note it for Services that ask for it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from bpfsvc.datapath.maps.backend_outcomes import BackendOutcomes, QuarantinedMap, read_states
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.scheduling.quarantine import Outcome
from tests.packets.icmp_errors import error
from tests.packets.node import Node
from tests.packets.packet import address_port, same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_new_connections import MANY

FAILED, WORKED = Outcome(1, 0), Outcome(0, 1)


class Watched:
    """A Service of one backend; attempts to reach it are noted."""

    def __init__(self, node: Node, peers: Peers, *, masquerade: bool, watched: bool = True) -> None:
        self.node, self.peers = node, peers
        policy = Policy(0, 1, masquerade, False)
        peers.service(node, [peers.backend], policies=Policies(*(policy,) * 3, watched=watched))
        self._outcomes = BackendOutcomes(node.pinned)

    def open(self) -> str:
        """Send a SYN; return the client as the backend sees it."""
        out = self.node.forward(tcp(self.peers.external, self.peers.vip))
        return self.peers.with_port(out.src, out.payload.sport)

    def client(self, flags: str) -> None:
        self.node.forward(tcp(self.peers.external, self.peers.vip, flags))

    def backend(self, seen: str, flags: str) -> None:
        back = self.node.forward(tcp(self.peers.backend, seen, flags))
        assert same(back, tcp(self.peers.vip, self.peers.external, flags))

    def later(self) -> None:
        """Make all connections one second older."""
        created = time.monotonic_ns() - 1_000_000_000
        for name in ("connections", "new_connections"):
            record = self.node.pinned.layout.maps[name].value
            table = self.node.pinned.map(name)
            for key, value in list(table.items()):
                table.update(key, record.pack({**record.unpack(value), "created": created}))

    def taken(self) -> Outcome | None:
        """Return what has been noted of the backend since the last call."""
        found = self._outcomes.take()
        (one,) = self.node.applied_state.of(("default", "web")).values()
        outcome = found.pop(one.counters()[address_port(self.peers.backend)], None)
        assert found == {}, "of another backend"
        return outcome


@pytest.fixture(params=[False, True], ids=["plain", "masqueraded"])
def masquerade(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["few", "many"])
def watched(
    request: pytest.FixtureRequest, node: Node, tcp_peers: Peers, masquerade: bool
) -> Watched:
    """With many half-open connections, new ones are where the kernel evicts."""
    node.half_open(MANY if request.param == "many" else 0)
    return Watched(node, tcp_peers, masquerade=masquerade)


def test_a_connection_that_is_established_is_a_success_once(watched: Watched) -> None:
    seen = watched.open()
    watched.backend(seen, "SA")
    assert watched.taken() is None
    for _ in range(3):
        watched.client("A")
    assert watched.taken() == WORKED
    watched.backend(seen, "R")
    assert watched.taken() is None


@pytest.mark.parametrize("answers", [["RA"], ["SA", "R"]], ids=["at once", "after its SYN"])
def test_a_refusal_is_a_failure_once(watched: Watched, answers: list[str]) -> None:
    seen = watched.open()
    for flags in answers:
        watched.backend(seen, flags)
    assert watched.taken() == FAILED
    watched.backend(seen, "RA")
    assert watched.taken() is None


def test_a_syn_that_is_sent_again_without_an_answer_is_a_failure_once(watched: Watched) -> None:
    watched.open()
    assert watched.taken() is None
    for wanted in (FAILED, None, None):
        watched.later()
        watched.open()
        assert watched.taken() == wanted


def test_an_attempt_that_has_failed_is_no_success_later(watched: Watched) -> None:
    seen = watched.open()
    watched.later()
    watched.open()
    watched.backend(seen, "SA")
    watched.client("A")
    assert watched.taken() == FAILED


def test_a_syn_that_is_sent_again_though_the_backend_has_answered_is_none(
    watched: Watched,
) -> None:
    """So who sends SYNs and never acknowledges cannot have backends taken out."""
    seen = watched.open()
    watched.backend(seen, "SA")
    watched.later()
    watched.open()
    assert watched.taken() is None
    watched.client("A")
    assert watched.taken() == WORKED


def test_two_copies_of_a_syn_are_no_failure(watched: Watched) -> None:
    watched.open()
    watched.open()
    assert watched.taken() is None


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("port unreachable", FAILED),
        ("host unreachable", FAILED),
        ("time exceeded", None),
        ("too big", None),
    ],
)
def test_an_icmp_error_that_says_unreachable_is_a_failure(
    watched: Watched, kind: str, wanted: Outcome | None
) -> None:
    seen = watched.open()
    peers = watched.peers
    about = tcp(seen, peers.backend)
    for _ in range(2):
        watched.node.forward(error(address_of(peers.backend), address_of(seen), about, kind))
    assert watched.taken() == wanted


@pytest.mark.parametrize("answers", [[], ["SA"]], ids=["at once", "after the answer"])
def test_a_client_that_gives_up_says_nothing(watched: Watched, answers: list[str]) -> None:
    seen = watched.open()
    for flags in answers:
        watched.backend(seen, flags)
    watched.client("R")
    assert watched.taken() is None


def test_each_attempt_from_one_port_counts(watched: Watched) -> None:
    for _ in range(3):
        watched.backend(watched.open(), "RA")
    assert watched.taken() == Outcome(3, 0)


def test_attempts_are_summed_until_they_are_taken(watched: Watched) -> None:
    watched.backend(watched.open(), "RA")
    seen = watched.open()
    watched.backend(seen, "SA")
    watched.client("A")
    assert watched.taken() == Outcome(1, 1)
    assert watched.taken() is None


def test_nothing_is_noted_of_other_services(node: Node, tcp_peers: Peers, masquerade: bool) -> None:
    service = Watched(node, tcp_peers, masquerade=masquerade, watched=False)
    seen = service.open()
    service.later()
    service.open()
    service.backend(seen, "SA")
    service.client("A")
    other = Watched(
        node,
        replace(tcp_peers, external=tcp_peers.with_port(tcp_peers.external, 50_000)),
        masquerade=masquerade,
        watched=False,
    )
    other.backend(other.open(), "RA")
    assert other.taken() is None


def test_what_people_are_shown_is_what_was_written_last(node: Node) -> None:
    shown = QuarantinedMap(node.pinned)
    shown.set({3: 17.5, 5: None})
    shown.set({5: None, 7: 18.0})
    states = read_states(node.pinned.map("quarantined").items(), node.pinned.layout)
    assert states == {5: True, 7: False}
    shown.set({})
    assert node.count("quarantined") == 0
