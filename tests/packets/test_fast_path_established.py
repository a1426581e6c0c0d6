"""Only the middle of connections is fast, where netfilter has to see how they begin and end.

The tests do what netfilter does: a packet that it lets pass runs egress, one that it drops does
not. They also write what the agent writes.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from bpfsvc.devtools.lab.patience import wait
from bpfsvc.services.entries import Policies, Policy
from tests.packets.established import KINDS, Connection, directly, open_by_the_stack
from tests.packets.fast_path import WEB_PORT, FastPathTestbed, fast_packets, forwarded, hop
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT, UNSPEC
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_fast_path import SLOW_PACKETS

ENOUGH = 16
"""ESTABLISHED_SHORT_PACKETS (bpf/maps/established_counts.h) and FAST_ENOUGH_PACKETS
(bpf/maps/fast_flows.h)."""


@pytest.fixture
def testbed(testbed: FastPathTestbed) -> FastPathTestbed:
    """The fast path's testbed, where only the middle of connections is fast."""
    testbed.node.settings(established=1)
    return testbed


@pytest.fixture(params=KINDS)
def connection(
    request: pytest.FixtureRequest, testbed: FastPathTestbed, fast_peers: Peers
) -> Connection:
    """A connection that the stack has opened, of each kind."""
    made = KINDS[request.param](testbed, fast_peers)
    open_by_the_stack(made)
    return made


@pytest.fixture
def direct(testbed: FastPathTestbed, fast_peers: Peers) -> Connection:
    """A connection to a pod of another node."""
    made = directly(testbed, fast_peers)
    open_by_the_stack(made)
    return made


def test_a_connection_is_a_candidate_when_enough_packets_of_both_sides_have_passed(
    connection: Connection,
) -> None:
    """Until an agent has asked conntrack, all of them take the stack."""
    for count in range(ENOUGH):
        connection.by_the_stack(count % 2 == 0)
        if count < ENOUGH - 3:  # packets of its beginning may count
            assert connection.states() == []
    assert connection.states() == ["CANDIDATE"]
    for _ in range(3):
        connection.by_the_stack(True)
        connection.by_the_stack(False)
    assert fast_packets(connection.testbed) == 0


def test_a_syn_to_an_endpoint_begins_the_count_of_packets_anew(
    testbed_tcp: FastPathTestbed, tcp_peers: Peers
) -> None:
    """What an earlier connection with these ports has counted makes no candidate."""
    tcp_peers.service(testbed_tcp.node, [tcp_peers.backend])
    made = directly(testbed_tcp, tcp_peers)
    for _ in range(2):
        open_by_the_stack(made)
        for count in range(ENOUGH - 2):  # the last packet of the beginning counts, too
            made.by_the_stack(count % 2 == 0)
        assert made.states() == []
    made.by_the_stack(True)
    assert made.states() == ["CANDIDATE"]


def forget(connection: Connection) -> None:
    """Remove all entries."""
    table = connection.testbed.node.pinned.map("established_flows")
    table.delete_many([key for key, _ in table.items()])


def test_packets_of_one_side_make_no_candidate(connection: Connection) -> None:
    for _ in range(ENOUGH):  # what the beginning has counted is over
        connection.by_the_stack(True)
    forget(connection)
    for _ in range(3 * ENOUGH):
        connection.by_the_stack(True)
    assert connection.states() == []


def test_packets_that_netfilter_drops_make_no_candidate(connection: Connection) -> None:
    for _ in range(2 * ENOUGH):
        connection.left_to_netfilter(True)
        connection.left_to_netfilter(False)
    assert connection.states() == []


def test_each_direction_is_fast_after_netfilter_has_let_one_of_its_packets_pass(
    connection: Connection,
) -> None:
    connection.write("FAST")
    for sent in (True, False):
        for _ in range(3):
            connection.left_to_netfilter(sent)
    connection.passes_netfilter(True)
    for _ in range(3):
        connection.fast(True)
    connection.left_to_netfilter(False)
    for _ in range(3):
        connection.fast(False)
    assert fast_packets(connection.testbed) == 6


def test_a_flow_is_looked_up_only_if_its_ports_are_listed(connection: Connection) -> None:
    connection.write("FAST", listed=False)
    for _ in range(3):
        connection.by_the_stack(True)
        connection.by_the_stack(False)
    connection.list_ports()
    connection.fast(True)
    connection.fast(False)


@pytest.mark.slow
def test_in_each_turn_netfilter_gets_a_packet_again_and_decides_anew(
    connection: Connection,
) -> None:
    connection.write("FAST")
    for sent in (True, False):
        connection.fast(sent)
        wait(lambda sent=sent: connection.comes(sent)[0] == UNSPEC, "the turn ends")  # type: ignore[misc]
        for _ in range(5):
            connection.left_to_netfilter(sent)
        connection.fast(sent)


@pytest.mark.parametrize("state", ["CANDIDATE", "REFUSED"])
def test_what_the_agent_has_not_found_established_takes_the_stack(
    connection: Connection, state: str
) -> None:
    connection.write(state)
    for _ in range(3):
        connection.by_the_stack(True)
        connection.by_the_stack(False)
    assert connection.states() == [state, state]


@pytest.mark.parametrize("flags", ["FA", "RA", "R"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sent", [True, False], ids=["of the client", "of the server"])
def test_the_end_of_a_connection_takes_the_stack_and_so_does_what_follows_it(
    testbed_tcp: FastPathTestbed, tcp_peers: Peers, kind: str, flags: str, sent: bool
) -> None:
    made = KINDS[kind](testbed_tcp, tcp_peers)
    open_by_the_stack(made)
    made.write("FAST")
    made.fast(True)
    made.fast(False)
    made.by_the_stack(sent, flags)
    assert made.states() == []
    for again in (True, False):
        made.by_the_stack(again)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Service" not in kind])
@pytest.mark.parametrize("sent", [True, False], ids=["of the client", "of the server"])
def test_a_connection_with_the_ports_of_an_earlier_one_begins_by_the_stack(
    testbed_tcp: FastPathTestbed, tcp_peers: Peers, kind: str, sent: bool
) -> None:
    """Conntrack expects every packet of it, until the agent has told it otherwise."""
    made = KINDS[kind](testbed_tcp, tcp_peers)
    open_by_the_stack(made)
    made.write("FAST")
    made.fast(True)
    made.by_the_stack(sent, "S")
    assert made.states() == []
    made.by_the_stack(not sent, "SA")
    made.by_the_stack(sent, "A")
    made.by_the_stack(True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_syn_that_comes_another_way_begins_another_connection_too(
    testbed_tcp: FastPathTestbed, tcp_peers: Peers, kind: str
) -> None:
    """Egress sees it, whatever it was at ingress."""
    made = KINDS[kind](testbed_tcp, tcp_peers)
    made.write("FAST")
    made.passes_netfilter(True, "S")
    assert made.states() == []


@pytest.fixture
def testbed_tcp(tcp_testbed: FastPathTestbed) -> FastPathTestbed:
    """The testbed for TCP alone."""
    tcp_testbed.node.settings(established=1)
    return tcp_testbed


@pytest.mark.parametrize("kind", SLOW_PACKETS)
def test_a_packet_that_the_stack_must_see_passes_unchanged(direct: Connection, kind: str) -> None:
    """In the middle of a fast connection; what follows is fast again."""
    direct.write("FAST")
    for _ in range(2):
        direct.fast(True)
        packet = SLOW_PACKETS[kind](direct.packets(True)[0])
        assert same(direct.testbed.to_stack("pod0", packet), packet)


@pytest.mark.parametrize("name", ["pod0", "eth0"])
def test_by_an_excluded_interface_nothing_is_fast(direct: Connection, name: str) -> None:
    """A program of others may be attached to it, and has to see the packets."""
    direct.testbed.write_interface(name, shortcut=False)
    direct.write("FAST")
    for _ in range(3):
        direct.by_the_stack(True)
        direct.by_the_stack(False)


def test_a_pod_that_uses_the_address_of_another_is_left_to_the_reverse_path_filter(
    direct: Connection,
) -> None:
    direct.write("FAST")
    direct.fast(True)
    packet = direct.packets(True)[0]
    assert same(direct.testbed.to_stack("pod1", packet), packet)


@pytest.mark.parametrize("excluded", ["pod0", "eth0", "a bridge of both"])
def test_what_could_not_be_fast_is_no_candidate(direct: Connection, excluded: str) -> None:
    testbed = direct.testbed
    if excluded.startswith("a"):
        for name in ("pod0", "eth0"):
            testbed.write_interface(name, bridge=testbed.ends["tun0"].index)
    else:
        testbed.write_interface(excluded, shortcut=False)
    for _ in range(2 * ENOUGH):
        direct.by_the_stack(True)
        direct.by_the_stack(False)
    assert direct.states() == []


def test_what_pods_exchange_with_others_is_no_candidate(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """A CNI masquerades it."""
    peers = fast_peers
    made = Connection(testbed, peers, peers.external, peers.external, "eth0")
    open_by_the_stack(made)
    for _ in range(2 * ENOUGH):
        made.by_the_stack(True)
        made.by_the_stack(False)
    assert made.states() == []
    made.write("FAST")
    made.by_the_stack(True)


def test_errors_about_fast_packets_take_the_stack(direct: Connection) -> None:
    """Conntrack knows the connection."""
    direct.write("FAST")
    direct.fast(True)
    direct.fast(False)
    quoted, peers = direct.packets(True)[0], direct.peers
    packet = error(peers.router, address_of(peers.client), quoted)
    assert same(direct.testbed.to_stack("eth0", packet), packet)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_packet_takes_the_stack_though_both_ends_are_pods(
    testbed: FastPathTestbed, fast_peers: Peers, kind: str
) -> None:
    made = KINDS[kind](testbed, fast_peers)
    made.left_to_netfilter(True, "S" if fast_peers.protocol == "TCP" else "")


def test_without_the_setting_entries_of_earlier_agents_mean_nothing(
    connection: Connection,
) -> None:
    connection.write("FAST")
    connection.fast(True)
    connection.testbed.node.settings()
    assert connection.comes(True)[0] == UNSPEC
    connection.testbed.node.settings(fast_path=1)
    if connection.peers.protocol == "TCP":
        assert connection.comes(True)[0] == UNSPEC


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_of_the_other_mode_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, kind: str
) -> None:
    """It was fast from its first packet; conntrack meets it in its middle."""
    testbed.node.settings(fast_path=1)
    made = KINDS[kind](testbed, fast_peers)
    first = "S" if fast_peers.protocol == "TCP" else ""
    if first or made.to != made.server:
        assert made.comes(True, first)[0] == REDIRECT
    testbed.node.settings(established=1)
    made.left_to_netfilter(True)


def test_the_middle_of_a_masqueraded_connection_is_translated_at_once(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """A pod asks a NodePort. Netfilter sees it without the masquerade, which comes after it."""
    peers, client, backend = fast_peers, fast_peers.client, fast_peers.backend
    entry = peers.on_node(WEB_PORT)
    policy = Policy(0, 1, masquerade=True, reject=False)
    peers.service(
        testbed.node, [backend], node_port=WEB_PORT, policies=Policies(policy, policy, policy)
    )
    routed = testbed.to_stack("pod0", peers.opening(client, entry))
    assert same(routed, peers.opening(client, backend))
    out = testbed.egress("eth0", hop(peers.opening(client, backend)), came_by="pod0")
    seen = peers.with_port(out.src, out.payload.sport)
    back = peers.answer(backend, client)
    assert same(testbed.to_stack("eth0", peers.answer(backend, seen)), back)
    assert same(testbed.egress("pod0", hop(back), came_by="eth0"), hop(peers.answer(entry, client)))
    if peers.protocol == "TCP":
        testbed.to_stack("pod0", tcp(client, entry, "A"))
        testbed.egress("eth0", hop(tcp(client, backend, "A")), came_by="pod0")
    Connection(testbed, peers, entry, backend, "eth0").write("FAST")

    way, data = ("pod0", "eth0"), peers.data(client, backend)
    sent = fast_after_netfilter(testbed, way, peers.data(client, entry), data)
    assert forwarded(sent, peers.data(seen, backend))
    way, data = ("eth0", "pod0"), peers.data(backend, client)
    back = fast_after_netfilter(testbed, way, peers.data(backend, seen), data)
    assert forwarded(back, peers.data(entry, client))


def fast_after_netfilter(
    testbed: FastPathTestbed, way: tuple[str, str], packet: Packet, routed: Packet
) -> Packet:
    """Let netfilter have a packet, as ``routed``; return the next one, which is fast."""
    came_by, leaves_by = way
    for _ in range(8):
        verdict, frame = testbed.run("ingress", came_by, packet)
        if verdict == REDIRECT:
            return frame.payload
        testbed.egress(leaves_by, hop(routed), came_by=came_by)
    raise AssertionError("no packet was fast")
