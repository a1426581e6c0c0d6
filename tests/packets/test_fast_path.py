"""The fast path: which packets take it, and that they leave as the stack would have sent them.

Where a packet is sent on to a neighbour, egress sees it as it always does, and is run here by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.packet import Packet

from tests.packets.crossing import (
    MTU,
    WEB_PORT,
    Crossing,
    forwarded,
    hop,
    open_far,
    open_masqueraded,
    open_near,
    taken,
)
from tests.packets.errors import error
from tests.packets.headers import with_headers
from tests.packets.node import REDIRECT, same, tcp
from tests.packets.scene import Scene, bare


def test_every_packet_to_another_node_and_back_is_fast(at: Crossing, people: Scene) -> None:
    """From the first: conntrack sees nothing of the connection. Replies go straight to the pod."""
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    for payload in (b"a", b"bc", b"d" * 1400):
        sent = at.neighbour("pod0", people.data(client, vip, payload))
        assert forwarded(sent, people.data(client, backend, payload))
        back = at.straight("eth0", people.data(backend, client, payload), to="pod0")
        assert forwarded(back, people.data(vip, client, payload))
    assert taken(at) == (9 if people.protocol == "TCP" else 8)


def test_between_pods_of_the_node_packets_go_straight_both_ways(
    at: Crossing, people: Scene
) -> None:
    client, vip, near = people.client, people.vip, people.other_backend
    open_near(at, people)
    sent = at.straight("pod0", people.data(client, vip), to="pod1")
    assert forwarded(sent, people.data(client, near))
    back = at.straight("pod1", people.data(near, client), to="pod0")
    assert forwarded(back, people.data(vip, client))


def test_a_masqueraded_connection_is_translated_where_it_leaves(
    at: Crossing, people: Scene
) -> None:
    """In by the uplink and out by it again: a NodePort whose backend is elsewhere."""
    stranger, entry = people.stranger, people.node_place(WEB_PORT)
    seen = open_masqueraded(at, people, people.backend, "eth0")
    sent = at.neighbour("eth0", people.data(stranger, entry))
    assert same(at.leaves("eth0", sent), hop(people.data(seen, people.backend)))
    back = at.neighbour("eth0", people.data(people.backend, seen))
    assert same(at.leaves("eth0", back), hop(people.data(entry, stranger)))


def test_straight_to_a_pod_a_packet_is_masqueraded_at_once(at: Crossing, people: Scene) -> None:
    """Egress of its interface is passed by: what that would do is done before."""
    stranger, entry, near = people.stranger, people.node_place(WEB_PORT), people.other_backend
    seen = open_masqueraded(at, people, near, "pod1")
    sent = at.straight("eth0", people.data(stranger, entry), to="pod1")
    assert forwarded(sent, people.data(seen, near))
    back = at.neighbour("pod1", people.data(near, seen))
    assert same(at.leaves("eth0", back), hop(people.data(entry, stranger)))


def test_a_backend_reaches_itself(at: Crossing, people: Scene) -> None:
    """In and out by one interface, masqueraded, straight back."""
    near, vip = people.other_backend, people.vip
    caller = people.at(near, 40000)
    people.service(at.node, [near], hairpin=True)
    sent = at.neighbour("pod1", people.opening(caller, vip))
    out = at.leaves("pod1", sent)
    seen = people.at(out.src, out.payload.sport)
    assert same(out, hop(people.opening(seen, near)))
    back = at.neighbour("pod1", people.answer(near, seen))
    assert same(at.leaves("pod1", back), hop(people.answer(vip, caller)))
    if people.protocol == "TCP":
        at.leaves("pod1", at.neighbour("pod1", tcp(caller, vip, "A")))
    sent = at.straight("pod1", people.data(caller, vip), to="pod1")
    assert forwarded(sent, people.data(seen, near))
    back = at.straight("pod1", people.data(near, seen), to="pod1")
    assert forwarded(back, people.data(vip, caller))


@pytest.mark.parametrize("flags", ["FA", "R", "RA"])
def test_the_end_of_a_connection_is_fast_and_known(
    tcp_at: Crossing, talkers: Scene, flags: str
) -> None:
    """To conntrack, an end out of nowhere would be invalid. The port can be used again."""
    client, vip, backend = talkers.client, talkers.vip, talkers.backend
    open_far(tcp_at, talkers)
    sent = tcp_at.neighbour("pod0", tcp(client, vip, flags))
    assert forwarded(sent, tcp(client, backend, flags))
    back = tcp_at.straight("eth0", tcp(backend, client, flags), to="pod0")
    assert forwarded(back, tcp(vip, client, flags))
    open_far(tcp_at, talkers)
    assert tcp_at.node.counter("connections_reopened") == 1


def test_a_port_used_again_may_lead_elsewhere(tcp_at: Crossing, talkers: Scene) -> None:
    client, vip, near = talkers.client, talkers.vip, talkers.other_backend
    open_far(tcp_at, talkers)
    tcp_at.neighbour("pod0", tcp(client, vip, "R"))
    talkers.service(tcp_at.node, [near])
    sent = tcp_at.straight("pod0", tcp(client, vip, "S"), to="pod1")
    assert forwarded(sent, tcp(client, near, "S"))


def test_a_connection_goes_on_fast_after_a_pause(at: Crossing, people: Scene) -> None:
    """What its way out needs was collected meanwhile, or is looked for at least."""
    stranger, entry, near = people.stranger, people.node_place(WEB_PORT), people.other_backend
    seen = open_masqueraded(at, people, near, "pod1")
    at.node.age(5)
    sent = at.straight("eth0", people.data(stranger, entry), to="pod1")
    assert forwarded(sent, people.data(seen, near))


def test_an_unknown_neighbour_is_asked_for_on_the_way(at: Crossing, people: Scene) -> None:
    """The stack is not bothered: who sends to a neighbour asks for it by himself."""
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    at.forget_neighbour(client, "pod0")
    back = at.neighbour("eth0", people.data(backend, client))
    assert forwarded(back, people.data(backend, client))
    assert same(at.leaves("pod0", back), hop(people.data(vip, client)))


# -- doubts in the middle of a connection ------------------------------------------------------


def long(packet: Packet) -> Packet:
    return packet / (b"x" * MTU)


def with_options(packet: Packet) -> Packet:
    if isinstance(packet, IP):
        packet = packet.copy()
        packet.options = [IPOption_NOP()] * 4
        return packet
    return with_headers(packet, IPv6ExtHdrDestOpt())


DOUBTS: dict[str, Callable[[Packet], Packet]] = {
    "its last hop": lambda packet: hop(packet, 1),
    "no hop left": lambda packet: hop(packet, 0),
    "longer than the way allows": long,
    "with options": with_options,
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_the_stack_has_to_see_is_translated_and_left_to_it(
    at: Crossing, people: Scene, doubt: str
) -> None:
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    before = taken(at)
    change = DOUBTS[doubt]
    assert same(
        at.stack("pod0", change(people.data(client, vip))), change(people.data(client, backend))
    )
    reply = change(people.data(backend, client))
    assert same(at.stack("eth0", reply), reply)
    assert same(at.leaves("pod0", reply), change(people.data(vip, client)))
    assert taken(at) == before
    assert forwarded(at.neighbour("pod0", people.data(client, vip)), people.data(client, backend))


def test_of_many_packets_in_one_the_length_of_each_counts(tcp_at: Crossing, talkers: Scene) -> None:
    client, vip, backend = talkers.client, talkers.vip, talkers.backend
    open_far(tcp_at, talkers)
    headers = len(bytes(tcp(client, vip, "PA")))
    payload = b"x" * 2900
    sent = tcp_at.neighbour("pod0", talkers.data(client, vip, payload), gso=MTU - headers)
    assert forwarded(sent, talkers.data(client, backend, payload))
    tcp_at.straight("eth0", talkers.data(backend, client, payload), to="pod0", gso=MTU - headers)
    tcp_at.stack("pod0", talkers.data(client, vip, payload), gso=MTU - headers + 1)
    tcp_at.stack("eth0", talkers.data(backend, client, payload), gso=MTU - headers + 1)


def test_a_frame_for_somebody_else_is_not_sent_on(at: Crossing, people: Scene) -> None:
    """Such frames are seen by an interface that listens to all: they would be sent twice."""
    open_far(at, people)
    data = people.data(people.client, people.vip)
    verdict, frame = at.run("ingress", "pod0", data, to="02:00:00:00:00:99")
    assert verdict != REDIRECT
    assert same(frame.payload, people.data(people.client, people.backend))


def test_a_packet_by_another_interface_has_to_pass_the_reverse_path_filter(
    at: Crossing, people: Scene
) -> None:
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    assert same(at.stack("pod1", people.data(client, vip)), people.data(client, backend))
    reply = people.data(backend, client)
    assert same(at.stack("pod1", reply), reply)


def test_turned_off_it_leaves_its_connections_to_the_stack(at: Crossing, people: Scene) -> None:
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    at.node.settings(fast_path=0)
    assert same(at.stack("pod0", people.data(client, vip)), people.data(client, backend))
    reply = people.data(backend, client)
    assert same(at.stack("eth0", reply), reply)
    assert same(at.leaves("pod0", reply), people.data(vip, client))


def test_while_connections_are_carried_over_from_an_older_build_nothing_is_fast(
    at: Crossing, people: Scene
) -> None:
    """Egress holds back what it does not know yet, so nothing may go past it."""
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    at.node.settings(fast_path=1, settling=1)
    assert same(at.stack("pod0", people.data(client, vip)), people.data(client, backend))
    assert at.run("ingress", "eth0", people.data(backend, client))[0] != REDIRECT


def test_an_interface_that_no_longer_takes_part_is_served_by_the_stack(
    at: Crossing, people: Scene
) -> None:
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    at.put("eth0", shortcut=False)
    assert same(at.stack("pod0", people.data(client, vip)), people.data(client, backend))


# -- errors about fast connections ------------------------------------------------------------


def test_an_error_of_a_router_about_a_request_is_fast(at: Crossing, people: Scene) -> None:
    """To conntrack it would be about nothing. Where it leaves it becomes one about the frontend."""
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    comes = error(people.router, bare(client), people.data(client, backend))
    sent = at.neighbour("eth0", comes)
    assert forwarded(sent, comes)
    wanted = error(people.router, bare(client), people.data(client, vip))
    assert same(at.leaves("pod0", sent), hop(wanted))


def test_an_error_about_a_masqueraded_request_is_fast(at: Crossing, people: Scene) -> None:
    stranger, entry, backend = people.stranger, people.node_place(WEB_PORT), people.backend
    seen = open_masqueraded(at, people, backend, "eth0")
    sent = at.neighbour("eth0", error(people.router, people.us, people.data(seen, backend)))
    assert forwarded(sent, error(people.router, bare(stranger), people.data(stranger, backend)))
    wanted = error(people.router, bare(stranger), people.data(stranger, entry))
    assert same(at.leaves("eth0", sent), hop(wanted))


def test_an_error_about_a_reply_is_fast(at: Crossing, people: Scene) -> None:
    """The client itself complains, to the frontend; the backend hears of what it had sent."""
    client, vip, backend = people.client, people.vip, people.backend
    open_far(at, people)
    kind = "port unreachable"
    sent = at.neighbour("pod0", error(bare(client), bare(vip), people.data(vip, client), kind))
    wanted = error(bare(client), bare(backend), people.data(backend, client), kind)
    assert forwarded(sent, wanted)


def test_an_error_about_a_connection_of_the_stack_is_left_to_it(
    at: Crossing, people: Scene
) -> None:
    client, vip, backend = people.client, people.vip, people.backend
    at.node.settings(fast_path=0)
    open_slow = people.opening(client, vip)
    people.service(at.node, [backend])
    at.stack("pod0", open_slow)
    at.node.settings(fast_path=1)
    comes = error(people.router, bare(client), people.opening(client, backend))
    assert same(at.stack("eth0", comes), comes)
