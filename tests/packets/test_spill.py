"""Connections spill over from the near endpoints while these carry too much, packet by packet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from bpfsvc.datapath.loader.map_copies import converter
from bpfsvc.datapath.maps.backend_outcomes import QuarantinedMap
from bpfsvc.datapath.maps.layout import Record, Value
from bpfsvc.services.entries import CLIENTS
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.loads import FIRST_PORT, HALF_OPEN, Loaded
from tests.packets.node import Node
from tests.packets.packet import address_port, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_socket_loads import Client
from tests.packets.traffic import counted
from tests.services.objects import endpoint_slice, service

NEAR, ALL = 2, 6

SCHEDULERS = ("random", "rr", "wrr", "lc", "sh,sh-port", "mh,mh-port", "lblc", "twos")


def spilling(
    node: Node,
    peers: Peers,
    scheduler: str,
    *,
    count: int = ALL,
    trial: Sequence[int] = (),
    **parts: Any,
) -> Loaded:
    """Write a Service of two near endpoints and four of another zone, with an overload of 1.5.

    ``count``: of all endpoints; ``trial``: which of them are on trial.
    """
    loaded = Loaded(node, peers)
    port = peers.vip.rsplit(":", 1)[1]
    backend = address_of(peers.backend)
    of_service = service(
        ports=[{"name": "", "port": int(port)}],
        annotations={
            "bpfsvc.io/zone-overload": "1.5",
            "bpfsvc.io/scheduler": scheduler,
            **({"bpfsvc.io/quarantine": "1 failure/10s for 30s"} if trial else {}),
        },
        **{"clusterIP": address_of(peers.vip), **parts},
    )
    slices = [
        endpoint_slice(
            f"{backend} {'here zone-a' if number < NEAR else 'there zone-b'}@",
            name=f"web-{number}",
            ports=({"name": "", "port": FIRST_PORT + number},),
        )
        for number in range(count)
    ]
    scheduling, faults = read_scheduling(of_service, slices)
    assert not faults
    on_trial = [address_port(peers.with_port(peers.backend, FIRST_PORT + at)) for at in trial]
    scheduling = scheduling._replace(trial=tuple(on_trial))
    here = NodeContext("here", "zone-a")
    node.program(evaluate(of_service, slices, here, ServiceConfig(), scheduling).entries)
    node.half_open(HALF_OPEN)
    loaded.backends = [peers.with_port(peers.backend, FIRST_PORT + at) for at in range(count)]
    shown = QuarantinedMap(node.pinned)
    shown.set({loaded.counters()[at]: None for at in trial})
    return loaded


def overloaded(counts: list[int]) -> bool:
    """True if the near ones have on average more than 1.5 times as many as all."""
    return 1000 * sum(counts[:NEAR]) * ALL > 1500 * NEAR * sum(counts)


def follow(loaded: Loaded, scheduler: str, connections: int) -> None:
    """Open connections, at most 60 at once, and compare each choice with the rule."""
    random, counts, alive = Random(3), [0] * ALL, dict[int, int]()
    spilled, far = 0, 0
    for port in range(2000, 2000 + connections):
        over = overloaded(counts)
        chosen = loaded.open(port)
        assert chosen is not None
        spilled, far = spilled + over, far + (chosen >= NEAR)
        assert over or chosen < NEAR, (port, counts)
        if over and scheduler == "lc":
            assert counts[chosen] == min(counts), (port, chosen, counts)
        counts[chosen] += 1
        alive[port] = chosen
        if len(alive) > 60:
            gone = random.choice(list(alive))
            counts[alive.pop(gone)] -= 1
            loaded.send(gone, "R")
            loaded.remove(gone)
    assert spilled > 0
    assert far > 0
    assert [active for active, _ in loaded.numbers()] == counts
    # The near ones carry 1.5 * 2 / 6 of all, as near as whole connections come to that.
    assert 0.4 < sum(counts[:NEAR]) / sum(counts) < 0.6


@pytest.mark.parametrize("scheduler", ["random", "lc"])
def test_connections_spill_over_exactly_while_the_near_endpoints_carry_too_much(
    node: Node, tcp_peers: Peers, scheduler: str
) -> None:
    follow(spilling(node, tcp_peers, scheduler), scheduler, 90)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_three_thousand_connections_follow_the_rule(
    node: Node, tcp_peers: Peers, scheduler: str
) -> None:
    follow(spilling(node, tcp_peers, scheduler), scheduler, 3000)


def test_clients_outside_that_the_policy_keeps_to_this_node_never_spill_over(
    node: Node, tcp_peers: Peers
) -> None:
    """externalTrafficPolicy Local is about the client's address, and no matter of topology."""
    kind: dict[str, Any] = {"type": "LoadBalancer", "externalIPs": [address_of(tcp_peers.vip)]}
    inside = address_of(tcp_peers.other_vip)
    spilling(node, tcp_peers, "random", externalTrafficPolicy="Local", clusterIP=inside, **kind)
    chosen = set()
    for port in range(2000, 2060):
        client = tcp_peers.with_port(address_of(tcp_peers.external), port)
        chosen.add(node.forward(tcp(client, tcp_peers.vip)).payload.dport - FIRST_PORT)
    assert chosen == {0, 1}


def test_with_the_policy_local_no_connection_spills_over(node: Node, tcp_peers: Peers) -> None:
    loaded = spilling(node, tcp_peers, "random", internalTrafficPolicy="Local")
    assert {loaded.open(port) for port in range(2000, 2060)} == {0, 1}


def test_the_far_endpoints_count_as_soon_as_they_have_connections(
    node: Node, tcp_peers: Peers
) -> None:
    loaded = spilling(node, tcp_peers, "lc")
    loaded.put([(9, 0), (9, 0), *[(6, 0)] * 4])
    # 9 is not more than 1.5 times 7; a tenth for one of the near ones does not change that.
    assert loaded.open(2000) in (0, 1)
    loaded.put([(9, 0), (9, 0), *[(4, 0)] * 4])
    # 1.5 times 34 / 6 is 8.5.
    assert loaded.open(2001) == 2


def test_what_an_address_keeps_among_the_near_endpoints_is_apart_from_what_it_keeps_of_all(
    node: Node, tcp_peers: Peers
) -> None:
    loaded = spilling(node, tcp_peers, "lblc")
    layout, table = node.pinned.layout, node.pinned.map("localities")
    key, value = layout.maps["localities"].key, layout.maps["localities"].value
    kept = []
    for port, near in ((2000, 0), (2001, 9)):
        loaded.put([(near, 0), (near, 0), *[(0, 0)] * 4])
        assert loaded.open(port) is not None
        rows = [(key.unpack(one), value.unpack(two)) for one, two in table.items()]
        kept.append({int(one["local"]) for one, two in rows if two["last"]})
    near, every = layout.constant("AMONG_NEAR"), layout.constant("AMONG_ALL")
    assert kept == [{near}, {near, every}]


def test_inactive_connections_of_tcp_do_not_count(node: Node, tcp_peers: Peers) -> None:
    loaded = spilling(node, tcp_peers, "lc")
    loaded.put([(1, 90), (1, 90), *[(1, 0)] * 4])
    assert loaded.open(2000) in (0, 1)


def test_a_far_endpoint_on_trial_is_tried_only_by_a_connection_that_spills_over(
    node: Node, tcp_peers: Peers
) -> None:
    loaded = spilling(node, tcp_peers, "lc", trial=(5,))
    loaded.put([(20, 0)] * ALL)
    assert {loaded.open(port) for port in range(2000, 2004)} == {0, 1}
    loaded.put([(9, 0), (9, 0), *[(0, 0)] * 4])
    assert loaded.open(2004) == 5
    assert loaded.open(2005) in (2, 3, 4)


def test_a_near_endpoint_on_trial_is_tried_whether_connections_spill_over_or_not(
    node: Node, tcp_peers: Peers
) -> None:
    loaded = spilling(node, tcp_peers, "lc", trial=(1, 5))
    loaded.put([(20, 0)] * ALL)
    assert [loaded.open(port) for port in range(2000, 2003)] == [1, 0, 0]
    loaded.put([(9, 0), (1, 0), *[(0, 0)] * 4])
    # Of the two on trial it is one at random, and the near one is being tried.
    assert 5 in {loaded.open(port) for port in range(2003, 2030)}


@pytest.mark.parametrize("near", [6, 9], ids=["enough", "too much"])
def test_a_socket_of_the_node_spills_over_while_the_near_endpoints_carry_too_much(
    node: Node, tcp_peers: Peers, near: int
) -> None:
    loaded = spilling(node, tcp_peers, "lc")
    loaded.put([(near, 0), (near, 0), *[(4, 0)] * 4])
    before = [counted(node, counters_id) for counters_id in loaded.counters()]
    with ExitStack() as stack:
        Client(node, tcp_peers, stack).goes_on()
    (chosen,) = (
        place
        for place, counters_id in enumerate(loaded.counters())
        if counted(node, counters_id)["connections"] > before[place]["connections"]
    )
    # Both near endpoints carry the same: it is one at random.
    assert (chosen == 2) if near > 6 else (chosen in (0, 1))


def test_what_addresses_keep_is_carried_over_by_its_set(node: Node) -> None:
    new = node.pinned.layout.maps["localities"].key
    fields = (
        *(("service", "I"), ("address", "16s"), ("local", "B"), ("schedule", "B")),
        ("zero", "2s"),
    )
    carry = converter(Record(fields), new)
    for local in (0, 1):
        values: dict[str, Value] = {"service": 7, "local": local, "schedule": Schedule.LBLCR.value}
        old = Record(fields).pack({**values, "address": bytes(range(16)), "zero": bytes(2)})
        assert new.unpack(carry(old))["local"] == local
        assert carry(old) == old


def test_entries_of_builds_without_spilling_over_are_carried_over(node: Node) -> None:
    maps = node.pinned.layout.maps
    new = maps["schedule_rounds"].value
    old = Record((("connections", "Q"),))
    turns = new.unpack(converter(old, new)(old.pack({"connections": 7})))
    assert turns == {"connections": 7, "spilled": 0}
    new = maps["frontends"].value
    added = {"counted", *(f"{client}.spills" for client in CLIENTS)}
    old = Record(tuple((name, kind) for name, kind in new.fields if name not in added))
    assert added <= set(new.names)
    numbers = [name for name, kind in old.fields if name and not kind.endswith("s")]
    values: dict[str, Value] = {name: number for number, name in enumerate(numbers, 1)}
    carried = new.unpack(converter(old, new)(old.pack(values)))
    assert {name: carried[name] for name in (*numbers, *added)} == {
        **values,
        **dict.fromkeys(added, 0),
    }
