"""Connections that fail before they are established are counted for their backend, by reason."""

from __future__ import annotations

import struct
import time

import pytest

from bpfsvc.inspect.fields import total
from tests.packets.icmp_errors import error
from tests.packets.node import Node
from tests.packets.packet import address_port, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_new_connections import MANY
from tests.packets.test_quarantine import FAILED, Watched

REASONS = ("refused", "unanswered", "unreachable")
REFUSED, UNANSWERED, UNREACHABLE = (1, 0, 0), (0, 1, 0), (0, 0, 1)
NONE = (0, 0, 0)


def counts(node: Node, peers: Peers) -> tuple[int, ...]:
    """Return what is counted of the backend, by reason."""
    (port,) = node.applied_state.of(("default", "web")).values()
    key = struct.pack("=I", port.counters()[address_port(peers.backend)])
    layout = node.pinned.layout.maps["backend_failures"]
    raw = node.pinned.map("backend_failures").lookup(key)
    return tuple(total(layout, REASONS)(raw)) if raw else NONE


class Service(Watched):
    """A Service of one backend that ejects no endpoints, as nearly all are."""

    def failed(self) -> tuple[int, ...]:
        return counts(self.node, self.peers)


@pytest.fixture(params=[False, True], ids=["usual", "with outlier ejection"])
def ejects(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["few", "many"])
def web(
    request: pytest.FixtureRequest, node: Node, tcp_peers: Peers, masquerade: bool, ejects: bool
) -> Service:
    """With many half-open connections, new ones are where the kernel evicts."""
    node.half_open(MANY if request.param == "many" else 0)
    return Service(node, tcp_peers, masquerade=masquerade, watched=ejects)


@pytest.fixture(params=[False, True], ids=["plain", "masqueraded"])
def masquerade(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("answers", [["RA"], ["SA", "R"]], ids=["at once", "after its SYN"])
def test_a_reset_of_the_backend_before_the_connection_is_established_counts_once(
    web: Service, answers: list[str]
) -> None:
    seen = web.open()
    for flags in answers:
        web.backend(seen, flags)
    assert web.failed() == REFUSED
    web.backend(seen, "RA")
    assert web.failed() == REFUSED


def test_what_a_backend_has_counted_goes_with_it(web: Service) -> None:
    web.backend(web.open(), "RA")
    counted = [name for name in ("backend_failures", "connect_times") if web.node.count(name)]
    assert counted == ["backend_failures"]
    web.node.remove("web")
    assert web.node.count("backend_failures") == 0


def test_the_next_attempt_from_the_same_port_counts_too(web: Service) -> None:
    for _ in range(3):
        web.backend(web.open(), "RA")
    assert web.failed() == (3, 0, 0)


def test_a_syn_that_is_sent_again_unanswered_counts_once(web: Service) -> None:
    web.open()
    assert web.failed() == NONE
    for _ in range(3):
        web.later()
        web.open()
        assert web.failed() == UNANSWERED


def test_two_copies_of_a_syn_are_no_failure(web: Service) -> None:
    web.open()
    web.open()
    assert web.failed() == NONE


def test_a_connection_that_is_established_and_then_reset_has_not_failed(web: Service) -> None:
    seen = web.open()
    web.backend(seen, "SA")
    web.client("A")
    web.backend(seen, "R")
    assert web.failed() == NONE


def test_a_client_that_resets_its_attempt_says_nothing_of_the_backend(web: Service) -> None:
    web.open()
    web.client("R")
    assert web.failed() == NONE


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("port unreachable", UNREACHABLE), ("host unreachable", UNREACHABLE), ("too big", NONE)],
)
def test_an_icmp_error_that_says_unreachable_counts_once(
    web: Service, kind: str, wanted: tuple[int, ...]
) -> None:
    seen = web.open()
    about = tcp(seen, web.peers.backend)
    for _ in range(2):
        web.node.forward(error(address_of(web.peers.backend), address_of(seen), about, kind))
    assert web.failed() == wanted


def silent(node: Node) -> None:
    """Make all connections older than half-open connections are kept."""
    for name in ("connections", "new_connections"):
        record = node.pinned.layout.maps[name].value
        table = node.pinned.map(name)
        for key, value in list(table.items()):
            seen = time.monotonic_ns() - 100_000_000_000
            table.update(key, record.pack({**record.unpack(value), "seen": seen}))


def swept(node: Node) -> None:
    """Propose all connections to the GC."""
    for name in ("connections", "new_connections"):
        for key, _ in list(node.pinned.map(name).items()):
            node.collect(key)


def test_an_attempt_that_nobody_answers_counts_once_when_it_is_removed(web: Service) -> None:
    web.open()
    swept(web.node)
    assert web.failed() == NONE
    silent(web.node)
    swept(web.node)
    assert web.failed() == UNANSWERED
    assert web.node.count("connections") + web.node.count("new_connections") == 0


def test_an_attempt_that_has_been_counted_is_not_counted_again_when_it_is_removed(
    web: Service,
) -> None:
    web.open()
    web.later()
    web.open()
    silent(web.node)
    swept(web.node)
    assert web.failed() == UNANSWERED


@pytest.mark.parametrize("who", ["the backend answers", "the client resets"])
def test_an_attempt_that_the_client_gives_up_is_no_failure_when_it_is_removed(
    web: Service, who: str
) -> None:
    """A flood of SYNs with forged sources is no fault of the backend that answers them."""
    seen = web.open()
    if who == "the backend answers":
        web.backend(seen, "SA")
    else:
        web.client("R")
    silent(web.node)
    swept(web.node)
    assert web.failed() == NONE


def test_a_backend_does_not_inherit_the_failures_of_a_former_one(
    node: Node, tcp_peers: Peers
) -> None:
    web = Service(node, tcp_peers, masquerade=False, watched=False)
    web.backend(web.open(), "RA")
    assert web.failed() == REFUSED
    node.remove("web")
    again = Service(node, tcp_peers, masquerade=False, watched=False)
    assert again.failed() == NONE


@pytest.mark.parametrize("name", ["backend_failures", "backend_outcomes"])
def test_a_failure_that_finds_no_room_is_not_counted_and_the_client_hears_of_it(
    node: Node, tcp_peers: Peers, name: str
) -> None:
    """Each counts in its own table; the failure after that, when there is room again."""
    web = Service(node, tcp_peers, masquerade=False, watched=True)
    table = node.pinned.map(name)
    others = [struct.pack("=I", 1 << 20 | number) for number in range(table.max_entries)]
    table.update_many([(key, bytes(table.value_size)) for key in others])
    web.backend(web.open(), "RA")
    table.delete_many(others)
    failures, outcome = (NONE, FAILED) if name == "backend_failures" else (REFUSED, None)
    assert (web.failed(), web.taken()) == (failures, outcome)
    web.backend(web.open(), "RA")
    failures = REFUSED if name == "backend_failures" else (2, 0, 0)
    assert (web.failed(), web.taken()) == (failures, FAILED)
