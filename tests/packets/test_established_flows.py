"""What the agent makes of candidates for the middle of connections, with conntrack's real table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.agent.flows import established_flows
from bpfsvc.agent.flows.established_flows import EstablishedFlows, forget_all
from bpfsvc.datapath.netlink.conntrack import entries
from bpfsvc.devtools.lab.patience import wait
from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import Peers

CLIENT, SERVER = "10.244.1.5:40000", "10.244.2.7:8080"
ENDS = ["-s", "10.244.1.5", "-d", "10.244.2.7", "--sport", "40000", "--dport", "8080"]
ESTABLISHED = ("--state", "ESTABLISHED", "-u", "SEEN_REPLY,ASSURED")


class Table:
    """The entries of one node, and netfilter's."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.map = node.pinned.map("established_flows")
        self.record = node.pinned.layout.maps["established_flows"].value
        self.keys = [
            node.established_flow(CLIENT, SERVER, "TCP"),
            node.established_flow(SERVER, CLIENT, "TCP"),
        ]

    def write(self, state: str, *, asked: int = 0, both: bool = True) -> None:
        number = self.node.pinned.layout.constant(f"ESTABLISHED_{state}")
        for key in self.keys[: 2 if both else 1]:
            self.map.update(key, self.record.pack({"state": number, "asked": asked}))

    def states(self) -> list[str]:
        names = {
            self.node.pinned.layout.constant(f"ESTABLISHED_{name}"): name
            for name in ("CANDIDATE", "REFUSED", "FAST")
        }
        return [names[int(self.record.unpack(raw)["state"])] for _, raw in self.map.items()]

    def conntrack(self, *options: str, seconds: int = 4000) -> None:
        command = ["conntrack", "-I", "-p", "tcp", *ENDS, "-t", str(seconds), *options]
        subprocess.run(command, check=True, capture_output=True)

    def listed(self) -> str:
        command = ["conntrack", "-L", "-p", "tcp", *ENDS]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout


@pytest.fixture
def table(node: Node) -> Iterator[Table]:
    yield Table(node)
    subprocess.run(["conntrack", "-F"], check=False, capture_output=True)


def flows(table: Table, **seconds: float) -> EstablishedFlows:
    """Return the agent's part, which checks at each look."""
    made: dict[str, Any] = {"check_seconds": 0.0, "refused_seconds": 1000.0, **seconds}
    return EstablishedFlows(table.node.pinned, lambda _: None, **made)


@pytest.mark.parametrize("which", [0, 1], ids=["of the client", "of the server"])
def test_what_conntrack_has_established_is_fast_both_ways(table: Table, which: int) -> None:
    table.conntrack(*ESTABLISHED)
    table.keys.insert(0, table.keys.pop(which))
    table.write("CANDIDATE", both=False)
    flows(table).look()
    assert table.states() == ["FAST", "FAST"]


@pytest.mark.parametrize("options", [None, ("--state", "FIN_WAIT", "-u", "SEEN_REPLY,ASSURED")])
def test_what_it_has_not_established_is_refused_for_a_while(
    table: Table, options: tuple[str, ...] | None
) -> None:
    if options:
        table.conntrack(*options)
    table.write("CANDIDATE", both=False)
    made = flows(table, refused_seconds=0.5)
    made.look()
    assert table.states() == ["REFUSED"]
    made.look()
    assert table.states() == ["REFUSED"]

    def is_forgotten() -> bool:
        made.look()
        return table.states() == []

    wait(is_forgotten, "it may be a candidate again")


def listed_ports(table: Table) -> int:
    """Return how many indices of ports are listed."""
    value = table.node.pinned.map("established_ports").lookup(bytes(4)) or b""
    return sum(value)


def test_ports_are_listed_before_conntrack_is_asked(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that ends while conntrack is asked must be removed by its FIN."""
    asked: list[int] = []

    def look_up(flows: Any) -> Any:
        asked.append(listed_ports(table))
        return entries.look_up(flows)

    monkeypatch.setattr(established_flows, "look_up", look_up)
    table.conntrack(*ESTABLISHED)
    table.write("CANDIDATE", both=False)
    made = flows(table)
    assert listed_ports(table) == 0
    made.look()
    assert asked[0] == 1


def test_ports_of_a_flow_that_is_gone_are_listed_for_one_look_more(table: Table) -> None:
    """The map is read while flows come and go."""
    table.conntrack(*ESTABLISHED)
    table.write("FAST", asked=1)
    made = flows(table, check_seconds=1000.0)
    made.look()
    forget_all(table.node.pinned)
    for left in (1, 0):
        made.look()
        assert listed_ports(table) == left


def test_what_is_over_for_conntrack_is_removed(table: Table) -> None:
    table.write("FAST")
    flows(table).look()
    assert table.states() == []


def test_what_is_silent_makes_room_for_others(table: Table) -> None:
    table.conntrack(*ESTABLISHED)
    made = flows(table)
    for turn in (1, 2, 3):
        table.write("FAST", asked=turn)
        made.look()
        assert table.states() == ["FAST", "FAST"]
    made.look()
    assert table.states() == []
    assert "ESTABLISHED" in table.listed()


def test_a_flow_of_which_one_side_is_silent_stays(table: Table) -> None:
    table.conntrack(*ESTABLISHED)
    made = flows(table)
    table.write("FAST", asked=1)
    for turn in (2, 3, 4):
        table.write("FAST", asked=turn, both=False)
        made.look()
        assert table.states() == ["FAST", "FAST"]


def test_conntrack_keeps_it_as_long_as_others(table: Table) -> None:
    """Though it has seen data that nobody has acknowledged, as far as it knows."""
    table.conntrack(*ESTABLISHED, seconds=250)
    table.write("FAST")
    flows(table).look()
    assert int(table.listed().split()[2]) > 3600


def test_a_later_agent_checks_what_an_earlier_one_has_left(table: Table) -> None:
    table.conntrack(*ESTABLISHED)
    table.write("CANDIDATE", both=False)
    flows(table).look()
    flows(table).look()
    assert table.states() == ["FAST", "FAST"]
    forget_all(table.node.pinned)
    assert table.states() == []


def test_a_syn_begins_the_count_of_packets_anew_and_no_other_end_does(
    node: Node, tcp_peers: Peers
) -> None:
    node.settings(established=1)
    client, backend = tcp_peers.client, tcp_peers.backend
    counts = node.pinned.map("established_counts")

    def counted() -> int:
        return sum(counts.lookup(bytes(4)) or b"")

    for flags, wanted in (("PA", 1), ("PA", 2), ("FA", 2), ("R", 2), ("S", 0), ("SA", 0)):
        node.run("egress", tcp(client, backend, flags))
        assert counted() == wanted, flags
    node.run("egress", tcp(client, backend, "PA"))
    assert counted() == 1
