"""A backend at its limit of connections is left out, and if all are, packets are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from scapy.packet import Packet

from bpfsvc.datapath.maps.backend_outcomes import QuarantinedMap
from bpfsvc.explain.programs import decide
from bpfsvc.explain.question import Question, question
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from tests.packets.events import Events
from tests.packets.loads import HALF_OPEN, Loaded
from tests.packets.node import REDIRECT, UNSPEC, Node
from tests.packets.packet import address_port, frame, tcp
from tests.packets.peers import TCP_PEERS, Peers, address_of
from tests.packets.refusals import refused
from tests.packets.test_metrics import opened
from tests.packets.test_refusals import counted as refusals_counted
from tests.packets.test_refusals import labels
from tests.services.objects import endpoint_slice, service

FIRST_PORT = 9000
LIMIT, THREADS = 2, 4
NODE_PORT = 30080

SCHEDULERS = (
    *("random", "rr", "wrr", "sh", "dh", "mh", "lc", "wlc", "sed", "nq", "fo", "twos"),
    *("lblc", "lblcr"),
)


def of_zone(is_near: bool) -> str:
    return "here zone-a@" if is_near else "there zone-b@"


class Limited(Loaded):
    """A Service whose endpoints may have two connections each, and its clients."""

    def write(
        self,
        count: int = 3,
        annotations: dict[str, str] | None = None,
        *,
        near: int = 0,
        trial: Sequence[int] = (),
        **spec: Any,
    ) -> None:
        """Write the Service; the first ``near`` endpoints are near ones, if there are any.

        ``trial``: which endpoints are on trial.
        """
        peers, vip = self.peers, address_of(self.peers.vip)
        port: dict[str, Any] = {"name": "", "port": 80, "protocol": peers.protocol}
        if spec.get("type") == "NodePort":
            port["nodePort"] = NODE_PORT
        texts = {"bpfsvc.io/max-connections-per-backend": f"{LIMIT}"}
        texts |= {f"bpfsvc.io/{name}": text for name, text in (annotations or {}).items()}
        written = service(ports=[port], annotations=texts, **{"clusterIP": vip, **spec})
        address = address_of(peers.backend)
        slices = [
            endpoint_slice(
                f"{address} {of_zone(number < near) if near else 'here'}",
                name=f"web-{number}",
                ports=({"name": "", "port": FIRST_PORT + number, "protocol": peers.protocol},),
            )
            for number in range(count)
        ]
        self.backends = [peers.with_port(address, FIRST_PORT + at) for at in range(count)]
        scheduling, faults = read_scheduling(written, slices)
        assert not faults
        scheduling = scheduling._replace(
            trial=tuple(address_port(self.backends[at]) for at in trial)
        )
        here = NodeContext("here", "zone-a")
        self.node.program(evaluate(written, slices, here, ServiceConfig(), scheduling).entries)
        self.node.half_open(HALF_OPEN)
        QuarantinedMap(self.node.pinned).set({self.counters()[at]: None for at in trial})

    def first(self, port: int) -> Packet:
        """Return the first packet of a client."""
        return self.peers.opening(self.client(port), self.peers.vip)

    def begin(self, port: int) -> int | None:
        """Open a connection; return the number of its backend, None if the packet is refused."""
        verdict, after = self.node.run("ingress", self.first(port))
        if verdict == REDIRECT:
            return None
        assert verdict == UNSPEC, verdict
        number = int(after.payload.dport) - FIRST_PORT
        if self.peers.protocol == "SCTP":  # it is active once it is established
            backend, client = self.backends[number], self.client(port)
            assert self.node.run("egress", self.peers.answer(backend, client))[0] == UNSPEC
            comes, _ = self.peers.proof(client, self.peers.vip, backend, client)
            assert self.node.run("ingress", comes)[0] == UNSPEC
        return number

    def asked(self) -> Question:
        """Return what ``bpfsvc explain`` asks for a pod."""
        source, destination = address_of(self.peers.client), address_of(self.peers.vip)
        return question("pod", source, self.peers.protocol, destination, 80)

    def full_counted(self) -> int:
        assert self.node.counter("rejected__no_endpoints") == 0
        assert self.node.counter("dropped__no_endpoints") == 0
        return self.node.counter("rejected__backends_full")


@pytest.fixture
def limited(node: Node, peers: Peers) -> Limited:
    return Limited(node, peers)


@pytest.fixture
def plain(node: Node) -> Limited:
    """For what does not depend on the peers."""
    return Limited(node, TCP_PEERS[0])


def test_every_endpoint_is_filled_and_then_packets_are_refused_and_counted(
    limited: Limited,
) -> None:
    limited.write()
    metrics = opened(limited.node)
    assert Counter(limited.begin(port) for port in range(2000, 2006)) == {0: 2, 1: 2, 2: 2}
    assert limited.full_counted() == 0
    assert refused(limited.node, limited.first(2006))
    assert limited.full_counted() == 1
    assert refusals_counted(metrics) == {labels(limited.peers, "rejected", "backends_full"): 1}


@pytest.mark.usefixtures("one_cpu")
def test_the_refusal_that_follows_has_the_reason_of_its_own_service(plain: Limited) -> None:
    """A process of the node opens the connection, to a Service without endpoints."""
    peers, node = plain.peers, plain.node
    plain.write(1)
    peers.service(node, [], "other", frontends=[peers.other_vip])
    for port in range(2000, 2000 + LIMIT):
        plain.begin(port)
    assert refused(node, plain.first(2010))
    assert node.run("egress", peers.opening(peers.on_node(40000), peers.other_vip))[0] == REDIRECT
    assert node.counter("rejected__backends_full") == 1
    assert node.counter("rejected__no_endpoints") == 1


def test_a_packet_that_finds_all_backends_full_is_told_with_this_reason(limited: Limited) -> None:
    limited.write(1)
    assert [limited.begin(port) for port in range(2000, 2000 + LIMIT)] == [0] * LIMIT
    events = Events(limited.node)
    assert limited.begin(2010) is None
    (event,) = events.read()
    events.close()
    assert (event["kind"], event["reason"]) == ("refused", "backends_full")


def test_where_a_connection_ends_the_next_one_is_opened(limited: Limited) -> None:
    limited.write(2)
    chosen = {port: limited.begin(port) for port in range(2000, 2004)}
    assert limited.begin(2004) is None
    for port in range(2000, 2004):
        limited.remove(port)
        assert limited.begin(port + 100) == chosen[port]
        assert limited.begin(port + 200) is None


def test_a_connection_that_is_open_goes_on_at_the_limit(limited: Limited) -> None:
    limited.write(1)
    assert [limited.begin(port) for port in range(2000, 2003)] == [0, 0, None]
    assert limited.node.run("ingress", limited.first(2000))[0] == UNSPEC


def test_tcp_counts_until_its_first_end(plain: Limited) -> None:
    plain.write(1)
    assert [plain.begin(port) for port in range(2000, 2003)] == [0, 0, None]
    plain.answer(2000, 0, "FA")
    assert [plain.begin(2002), plain.begin(2003)] == [0, None]
    plain.put([(1, 900)])
    assert plain.begin(2004) == 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_with_every_scheduler_all_are_filled(plain: Limited, scheduler: str) -> None:
    plain.write(4, {"scheduler": scheduler})
    chosen = [plain.begin(port) for port in range(2000, 2008)]
    assert Counter(chosen) == dict.fromkeys(range(4), LIMIT)
    assert plain.begin(2008) is None
    assert plain.full_counted() == 1


def test_in_place_of_a_full_one_the_endpoint_with_the_fewest_is_chosen(plain: Limited) -> None:
    plain.write(3, {"scheduler": "fo"})
    plain.put([(2, 0), (1, 9), (0, 9)])
    assert [plain.begin(port) for port in range(2000, 2004)] == [2, 1, 2, None]


def test_a_client_with_affinity_to_a_full_endpoint_gets_another_one_and_stays_there(
    plain: Limited,
) -> None:
    affinity = {"clientIP": {"timeoutSeconds": 60}}
    plain.write(2, sessionAffinity="ClientIP", sessionAffinityConfig=affinity)
    first = plain.begin(2000)
    assert plain.begin(2001) == first
    other = plain.begin(2002)
    assert {first, other} == {0, 1}
    plain.remove(2000)
    assert plain.begin(2003) == other, "it stays with the other one"
    assert plain.begin(2004) == first
    assert plain.begin(2005) is None


def test_near_endpoints_that_are_full_refuse_unless_the_connection_overflows(
    plain: Limited,
) -> None:
    plain.write(6, {"zone-overload": "1.5", "scheduler": "lc"}, near=2)
    plain.put([(2, 0), (2, 0), *[(2, 0)] * 4])
    assert plain.begin(2000) is None
    plain.put([(2, 0), (2, 0), *[(0, 0)] * 4])
    assert plain.begin(2001) in (2, 3, 4, 5)


def test_without_overflow_far_endpoints_are_not_for_clients_of_the_near_ones(
    plain: Limited,
) -> None:
    plain.write(6, {"zone-overload": "1.5"}, near=2)
    plain.put([(2, 0), (2, 0), *[(1, 0), (2, 0)] * 2])
    # 2 is not more than 1.5 times 10 / 6.
    assert plain.begin(2000) is None


def test_clients_outside_get_endpoints_of_this_node_only(plain: Limited) -> None:
    vip = address_of(plain.peers.vip)
    kind: dict[str, Any] = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    inside = address_of(plain.peers.other_vip)
    plain.write(6, near=2, **{**kind, "externalIPs": [vip], "clusterIP": inside})
    outside = address_of(plain.peers.external)
    seen: list[int] = []
    for port in range(2000, 2004):
        client = plain.peers.with_port(outside, port)
        seen.append(plain.node.forward(tcp(client, plain.peers.vip)).payload.dport - FIRST_PORT)
    assert sorted(seen) == [0, 0, 1, 1]
    assert refused(plain.node, tcp(plain.peers.with_port(outside, 2004), plain.peers.vip))


def test_while_all_are_full_an_endpoint_on_trial_is_probed(plain: Limited) -> None:
    plain.write(3, {"quarantine": "1 failure/10s for 30s"}, trial=(2,))
    plain.put([(2, 0), (2, 0), (1, 0)])
    assert plain.begin(2000) == 2
    assert plain.begin(2001) is None, "another connection is probing it"


def test_an_endpoint_on_trial_that_is_full_is_not_probed(plain: Limited) -> None:
    plain.write(3, {"quarantine": "1 failure/10s for 30s"}, trial=(2,))
    plain.put([(1, 0), (2, 0), (2, 0)])
    assert plain.begin(2000) == 0
    assert plain.begin(2001) is None


def test_of_more_than_64_endpoints_the_only_one_with_room_is_among_those_compared(
    plain: Limited,
) -> None:
    plain.write(70)
    plain.put([(1, 0) if number == 5 else (2, 0) for number in range(70)])
    assert [plain.begin(2000), plain.begin(2001)] == [5, None]


def test_threads_at_once_exceed_the_limit_by_no_more_than_one_connection_each(
    plain: Limited,
) -> None:
    plain.write(2)
    for turn in range(10):
        plain.put([(0, 0), (0, 0)])
        ports = range(2000 + 100 * turn, 2040 + 100 * turn)
        frames = [frame(plain.first(port)) for port in ports]
        with ThreadPoolExecutor(THREADS) as pool:
            verdicts = list(pool.map(partial(plain.node.run_frame, "ingress"), frames))
        numbers = [active for active, _ in plain.numbers()]
        assert all(LIMIT <= number < LIMIT + THREADS for number in numbers), numbers
        assert sum(numbers) == sum(verdict == UNSPEC for verdict, _ in verdicts)


def test_explain_decides_the_same_and_counts_nothing(plain: Limited) -> None:
    plain.write(2)
    plain.put([(2, 0), (1, 0)])
    answers = [decide(plain.node.pinned, plain.asked(), 1) for _ in range(20)]
    wanted = address_port(plain.backends[1])
    assert {(answer.verdict, answer.backend) for answer in answers} == {("dnat", wanted)}
    plain.put([(2, 0), (2, 0)])
    assert decide(plain.node.pinned, plain.asked(), 1).verdict == "reject"
    assert plain.full_counted() == 0
    assert plain.numbers() == [(2, 0), (2, 0)]


def test_a_client_of_a_node_port_gets_the_backend_that_has_room(node: Node, peers: Peers) -> None:
    limited = Limited(node, peers)
    limited.write(3, type="NodePort")
    for room in range(3):
        loads = [LIMIT - (number == room) for number in range(3)]
        limited.put([(0, load) if peers.protocol == "UDP" else (load, 0) for load in loads])
        opening = peers.opening(limited.client(2000 + room), peers.on_node(NODE_PORT))
        verdict, after = node.run("ingress", opening)
        assert (verdict, after.payload.dport - FIRST_PORT) == (UNSPEC, room)
