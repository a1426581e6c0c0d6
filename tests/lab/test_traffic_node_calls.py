"""Calls of the node's own sockets: what is counted of them, and which backends they do without."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import cgroup, links
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import disconnect
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.inspect.fields import total
from tests.lab.known_pods import opened
from tests.lab.node_calls import (
    COUNTED,
    Trial,
    answering,
    await_trial,
    counted,
    forget_outcomes,
    forget_quarantine,
    no_storage,
    node_calls_testbed,
    outcomes,
    stopped_agent,
    stream,
)
from tests.lab.test_observe_sockets import RESET_LATER, SILENT_LATER
from tests.lab.test_quarantine import REFUSE, SICK, SILENT, broken
from tests.lab.test_traffic_node_sockets import PAIRS, asked, datagrams
from tests.lab.test_traffic_peer_names import cookie, names, peer
from tests.lab.testbed import ONE, Testbed, at

MPTCP = socket.IPPROTO_MPTCP
PORTS = itertools.count(43_000)


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """The lab."""
    with node_calls_testbed() as testbed:
        yield testbed


# -- loads --


@pytest.mark.parametrize("protocol", [0, MPTCP], ids=["TCP", "MPTCP"])
def test_a_connection_counts_while_it_is_open(running: Testbed, protocol: int, family: int) -> None:
    with stopped_agent(running) as pinned:
        assert counted(pinned) == (0, 0)
        with stream(running.node, family, protocol) as made:
            made.connect((COUNTED.vip(family), 80))
            assert counted(pinned) == (1, 0)
        wait(lambda: counted(pinned) == (0, 0), "it is taken back")


@pytest.mark.parametrize("kind", ["TCP", "UDP"])
def test_a_socket_that_connects_anew_counts_for_its_new_backend(
    running: Testbed, kind: str, family: int
) -> None:
    counts, none = (COUNTED.vip(family), 80), (ONE[2].vip(family), 80)
    make = stream if kind == "TCP" else datagrams
    with stopped_agent(running) as pinned, make(running.node, family) as made:
        for to in (counts, none, counts, counts, none):
            disconnect(made)
            made.connect(to)
            assert sum(counted(pinned)) == (to == counts)


# -- attempts --


def test_each_attempt_of_a_socket_is_recorded(running: Testbed, family: int) -> None:
    """The kernel goes on telling of a socket that has failed, also while it connects again."""
    with stopped_agent(running) as pinned, stream(running.node, family) as made:
        forget_outcomes(pinned)
        made.settimeout(None)
        with broken(running.lab.pods[1], REFUSE), broken(running.lab.pods[2], REFUSE):
            for failures in (1, 2, 3):
                with pytest.raises(ConnectionRefusedError):
                    made.connect((SICK.vip(family), 80))
                assert outcomes(pinned) == (failures, 0)
        made.connect((SICK.vip(family), 80))
        assert outcomes(pinned) == (3, 1)


def test_an_attempt_whose_first_syn_is_not_answered_is_recorded(
    running: Testbed, family: int
) -> None:
    """Before it ends: when the SYN is sent again."""
    pods = running.lab.pods[1:3]
    with stopped_agent(running) as pinned, stream(running.node, family) as made:
        forget_outcomes(pinned)
        with broken(pods[0], SILENT), broken(pods[1], SILENT):
            made.setblocking(False)
            made.connect_ex((SICK.vip(family), 80))
            wait(lambda: outcomes(pinned) == (1, 0), "the attempt has failed")
        forget_outcomes(pinned)


@contextmanager
def unwatched(testbed: Testbed, pinned: Pinned) -> Iterator[None]:
    """Have nothing follow the sockets of the node."""
    root = PinRoot(testbed.node.pin_root)
    with links.opened(root.links / "sockops") as link:
        syscall.link_detach(link)
    try:
        yield
    finally:
        assert testbed.node.cgroup
        cgroup.watch(root, pinned, testbed.node.cgroup)


def sent_again(made: socket.socket) -> bool:
    """True if a socket waits for the answer to a segment that it has sent more than once."""
    return made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2] > 0


@pytest.mark.parametrize("ends", ["silence", "a reset"])
def test_a_connection_that_was_established_unseen_has_not_failed(
    running: Testbed, family: int, ends: str
) -> None:
    """Also if its backend falls silent later, and data is sent again, or if it is reset."""
    pods = running.lab.pods[1:3]
    rule = SILENT_LATER if ends == "silence" else RESET_LATER
    with stopped_agent(running) as pinned, stream(running.node, family) as made:
        made.settimeout(None)
        with broken(pods[0], REFUSE), broken(pods[1], REFUSE), suppress(ConnectionRefusedError):
            made.connect((SICK.vip(family), 80))
        with unwatched(running, pinned):
            made.connect((SICK.vip(family), 80))
        forget_outcomes(pinned)
        with broken(pods[0], rule), broken(pods[1], rule):
            made.sendall(b"anybody?\n")
            if ends == "silence":
                wait(lambda: sent_again(made), "data is sent again")
            else:
                with pytest.raises(ConnectionResetError):
                    made.recv(1)
        assert outcomes(pinned) == (0, 0)


# -- a backend on trial --


@pytest.fixture
def trial(running: Testbed) -> Iterator[Trial]:
    """The trial of the second pod, which no connection tries so far."""
    forget_quarantine(running)
    with opened(running.node) as pinned:
        with broken(running.lab.pods[1], REFUSE):
            wait(lambda: not reached(running), "an attempt fails")
            made = await_trial(pinned)
        with stopped_agent(running):
            made.try_now(free=True)
            yield made
    forget_quarantine(running)


def reached(testbed: Testbed, source: int = 0, protocol: int = 0) -> str:
    """Return the pod that a socket of the node reaches; "" if it is refused."""
    at_port = ("", source) if source else None
    with stream(testbed.node, 4, protocol, source=at_port) as made:
        try:
            made.connect((SICK.vip(4), 80))
        except ConnectionRefusedError:
            return ""
        return answering(made)


def test_a_socket_of_mptcp_tries_no_backend(running: Testbed, trial: Trial) -> None:
    """Nobody would learn how that ends."""
    _, sick, well, *_ = running.lab.pods
    assert {reached(running, protocol=MPTCP) for _ in range(4)} == {well.name}
    assert trial.tried == 0
    assert reached(running) == sick.name


def test_a_bound_port_tries_a_backend_unless_another_socket_has_it_there(
    running: Testbed, trial: Trial
) -> None:
    """Then the backend is left to the next connection."""
    _, sick, well, *_ = running.lab.pods
    port = next(PORTS)
    assert reached(running, port) == sick.name
    port = next(PORTS)
    with stream(running.node, 4, source=("", port)) as other:
        other.connect((ONE[1].vip(4), 80))
        assert reached(running, port) == well.name
        assert trial.tried == 0
        assert answering(other) == sick.name
    assert reached(running) == sick.name


def test_a_bound_port_tries_the_backend_where_it_was_itself(running: Testbed, trial: Trial) -> None:
    _, sick, *_ = running.lab.pods
    with stream(running.node, 4, source=("", next(PORTS))) as made:
        for _ in range(3):
            made.connect((SICK.vip(4), 80))
            assert answering(made) == sick.name
            disconnect(made)
    assert trial.tried == 0


def test_a_bound_port_leaves_a_trial_to_the_connection_that_has_it(
    running: Testbed, trial: Trial
) -> None:
    """Also if the port cannot be used for the only other backend."""
    _, _, well, *_ = running.lab.pods
    source = ("", next(PORTS))
    with (
        stream(running.node, 4, source=source) as other,
        stream(running.node, 4, source=source) as made,
    ):
        other.connect((ONE[2].vip(4), 80))
        trial.try_now()
        tried = trial.tried
        with pytest.raises(OSError, match="assign requested address") as raised:
            made.connect((SICK.vip(4), 80))
        assert raised.value.errno == errno.EADDRNOTAVAIL
        assert trial.tried == tried
        assert answering(other) == well.name


# -- bound ports --


def test_a_bound_port_is_used_up_when_it_has_a_connection_to_each_backend(
    running: Testbed, family: int
) -> None:
    source = ("", next(PORTS))
    with ExitStack() as stack:
        made = [stack.enter_context(stream(running.node, family, source=source)) for _ in range(3)]
        for connected, pair in zip(made, PAIRS, strict=False):
            connected.connect((pair.vip(family), 80))
        with pytest.raises(OSError, match="assign requested address"):
            made[2].connect((PAIRS[0].vip(family), 80))
        assert {answering(connected) for connected in made[:2]} == {
            pod.name for pod in running.lab.pods[2:4]
        }


def test_a_bound_port_gets_its_own_backend_again_where_another_socket_has_the_other(
    running: Testbed, family: int
) -> None:
    source = ("", next(PORTS))
    with (
        stream(running.node, family, source=source) as other,
        stream(running.node, family, source=source) as made,
    ):
        other.connect((PAIRS[0].vip(family), 80))
        taken = answering(other)
        for _ in range(8):
            made.connect((PAIRS[1].vip(family), 80))
            assert {answering(made), taken} == {pod.name for pod in running.lab.pods[2:4]}
            disconnect(made)


# -- entries that change at this moment --


@contextmanager
def no_backends(pinned: Pinned, service: int) -> Iterator[None]:
    """Remove the backends of a service port, as they are between two of its changes."""
    table, record = pinned.map("backends"), pinned.layout.maps["backends"].key
    entries = [
        (key, value) for key, value in table.items() if record.unpack(key)["service"] == service
    ]
    table.delete_many([key for key, _ in entries])
    try:
        yield
    finally:
        table.update_many(entries)


def dropped(pinned: Pinned) -> int:
    """Return how many connections of all Services were dropped because they have no backend."""
    add = total(pinned.layout.maps["refusals"], ["dropped__no_endpoints"])
    return sum(sum(add(value)) for _, value in pinned.map("refusals").items())


def test_a_call_to_loopback_that_finds_no_backend_fails_at_once(running: Testbed) -> None:
    """Its SYN would leave by no interface where tc drops it, as it drops that to a cluster IP.

    It is counted as one that tc drops.
    """
    with stopped_agent(running) as pinned:
        before = dropped(pinned)
        layout = pinned.layout.maps["frontends"]
        key = layout.key.pack({"port": ONE[3].node_port, "protocol": 6, "address": pack("0.0.0.0")})
        frontend = pinned.map("frontends").lookup(key)
        assert frontend
        with no_backends(pinned, int(layout.value.unpack(frontend)["service"])):
            with (
                stream(running.node, 4) as made,
                pytest.raises(OSError, match="No route") as raised,
            ):
                made.connect(("127.0.0.1", ONE[3].node_port))
            assert raised.value.errno == errno.EHOSTUNREACH
            assert dropped(pinned) == before + 1
            with stream(running.node, 4) as made:
                made.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    made.connect((ONE[3].vip(4), 80))


# -- without memory --


@pytest.mark.parametrize("protocol", [0, MPTCP], ids=["TCP", "MPTCP"])
def test_a_connection_that_no_note_can_be_made_of_works_and_has_its_backends_name(
    running: Testbed, protocol: int, family: int
) -> None:
    """It counts for nothing, and how it ended is not known."""
    with stopped_agent(running) as pinned, no_storage(running.node):
        forget_outcomes(pinned)
        for named in (COUNTED, SICK):
            with stream(running.node, family, protocol) as made:
                made.connect((named.vip(family), 80))
                backends = {pod.name: pod.address(family) for pod in running.lab.pods}
                assert peer(made) == at(backends[answering(made)], 8080)
                assert cookie(made) not in names(running.node)
                assert counted(pinned) == (0, 0)
        assert outcomes(pinned) == (0, 0)


def test_an_answer_to_a_datagram_that_no_note_can_be_made_of_has_its_backends_name(
    running: Testbed, family: int
) -> None:
    backend = running.lab.pods[2]
    with no_storage(running.node), datagrams(running.node, family) as made:
        for _ in range(2):
            answer = asked(made, (ONE[2].vip(family), 80))
            assert answer == (backend.name, at(backend.address(family), 8080))
