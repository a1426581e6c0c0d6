"""Resets and FINs of established connections: which of them count, as netfilter judges them.

The receiver of a reset takes it if its sequence number is the next one that it expects. Within its
window it answers with an acknowledgement, and anything else it ignores (RFC 5961, 3.2).
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet, Raw

from tests.packets.conversation import SCALE, WINDOW, Conversation
from tests.packets.node import Node
from tests.packets.peers import Peers
from tests.packets.uplink import Uplink

KINDS = pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
SENDERS = pytest.mark.parametrize("sender", ["client", "backend"])


@pytest.fixture
def conversation(node: Node, tcp_peers: Peers, masquerade: bool) -> Conversation:
    return Conversation(node, tcp_peers, masquerade).open()


@KINDS
@SENDERS
@pytest.mark.parametrize(
    "ahead", [-1, -500, WINDOW << SCALE, 1 << 24, 1 << 31, -(1 << 30)], ids="{:+}".format
)
def test_a_reset_outside_the_window_reaches_its_receiver_and_changes_nothing(
    conversation: Conversation, sender: str, ahead: int
) -> None:
    """Who knows only addresses and ports cannot end a connection, however long it is silent."""
    packet = conversation.reset(sender, ahead)
    out = conversation.node.forward(packet)
    assert (out.payload.seq, str(out.payload.flags)) == (packet.payload.seq, "R")
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
@SENDERS
def test_the_reset_that_its_receiver_takes_ends_the_connection(
    conversation: Conversation, sender: str
) -> None:
    conversation.node.forward(conversation.reset(sender, 0))
    assert not conversation.is_kept()


@KINDS
@pytest.mark.parametrize(("flags", "ends"), [("R", False), ("RA", True)])
def test_a_reset_of_sequence_0_refuses_a_syn_only_if_it_acknowledges(
    node: Node, tcp_peers: Peers, masquerade: bool, flags: str, ends: bool
) -> None:
    """A backend that does not know the connection answers a SYN so."""
    conversation = Conversation(node, tcp_peers, masquerade, received=0x90000001).open()
    node.forward(conversation.from_backend(flags, seq=0))
    assert conversation.is_kept() is not ends


def fin(conversation: Conversation, sender: str, ahead: int, size: int = 0) -> Packet:
    """Make a FIN, with a sequence number like that of a reset."""
    if sender == "client":
        return conversation.from_client("FA", size, conversation.sent + ahead)
    return conversation.from_backend("FA", size, conversation.received + ahead)


EARLIEST, LATEST = -(1 << 19), (2 * WINDOW << SCALE) + (1 << 19)
"""Between which numbers a FIN counts (TCP_LONGEST_SEGMENT in bpf/path/conn/state.h)."""


def other(sender: str) -> str:
    return "backend" if sender == "client" else "client"


@KINDS
@SENDERS
@pytest.mark.parametrize(
    "ahead",
    [EARLIEST - 1, LATEST + 1, 3 << 19, 1 << 24, 1 << 31, -(1 << 30)],
    ids="{:+}".format,
)
def test_a_fin_far_outside_the_window_changes_nothing(
    conversation: Conversation, sender: str, ahead: int
) -> None:
    """The other side has closed its half; a forged FIN must not close this one."""
    conversation.node.forward(fin(conversation, other(sender), 0))
    conversation.node.forward(fin(conversation, sender, ahead))
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
@SENDERS
@pytest.mark.parametrize("ahead", [0, 1, -1000, (WINDOW << SCALE) - 1, EARLIEST, LATEST])
def test_a_fin_counts_also_with_data_on_their_way_and_when_it_repeats_data(
    conversation: Conversation, sender: str, ahead: int
) -> None:
    conversation.node.forward(fin(conversation, other(sender), 0))
    conversation.node.forward(fin(conversation, sender, ahead, 1000))
    assert not conversation.is_kept()


@KINDS
@SENDERS
@pytest.mark.parametrize("flags", ["FA", "A", "PA"])
@pytest.mark.parametrize("ahead", [3 << 19, 1 << 24, 1 << 31, -(1 << 30)], ids="{:+}".format)
def test_what_a_forged_packet_acknowledges_does_not_make_the_real_end_count_less(
    conversation: Conversation, sender: str, flags: str, ahead: int
) -> None:
    """Its numbers are arbitrary. Both sides then close, and nothing else comes between."""
    forged = fin(conversation, sender, ahead)
    forged.payload.flags = flags
    forged.payload.ack = (forged.payload.ack + ahead) & 0xFFFFFFFF
    conversation.node.forward(forged)
    conversation.node.forward(fin(conversation, other(sender), 0))
    conversation.node.forward(fin(conversation, sender, 0))
    assert not conversation.is_kept()


@KINDS
@SENDERS
def test_a_segment_without_the_flag_acknowledges_nothing(
    conversation: Conversation, sender: str
) -> None:
    """What stands in its field is within a window of what is expected, and still no number."""
    segment = fin(conversation, sender, 0)
    segment.payload.flags = "P"
    segment.payload.ack = (conversation.received if sender == "client" else conversation.sent) + 9
    segment.payload.ack &= 0xFFFFFFFF
    conversation.node.forward(segment)
    conversation.node.forward(conversation.reset(other(sender), 0))
    assert not conversation.is_kept()


@KINDS
def test_a_fin_before_the_answer_of_the_server_ends_nothing(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    """A client has nothing to close yet. The server closes its half, and the rest goes on."""
    conversation = Conversation(node, tcp_peers, masquerade)
    conversation.open(conversation.from_client("FA", seq=77))
    node.forward(fin(conversation, "backend", 0))
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
@SENDERS
def test_numbers_that_continue_after_packets_that_were_not_seen_count(
    conversation: Conversation, sender: str
) -> None:
    """Ten megabytes went another way. Their sender's next packet is where it was expected."""
    if sender == "client":
        conversation.received += 10 << 20
    else:
        conversation.sent += 10 << 20
    conversation.node.forward(conversation.answer_to_reset(other(sender)))
    conversation.node.forward(fin(conversation, other(sender), 0))
    conversation.node.forward(fin(conversation, sender, 0))
    assert not conversation.is_kept()


@KINDS
def test_a_connection_that_its_backend_has_accepted_anew_ends_by_its_own_numbers(
    conversation: Conversation,
) -> None:
    """No end of the connection before it was seen, and both numbers begin elsewhere."""
    node = conversation.node
    conversation.sent, conversation.received = 5, 0x90000000
    node.forward(conversation.from_client("S", seq=conversation.sent - 1))
    node.forward(conversation.from_backend("SA", seq=conversation.received - 1))
    node.forward(conversation.from_client("A"))
    conversation.talk(100, 1000)
    node.forward(fin(conversation, "backend", 0))
    node.forward(fin(conversation, "client", 0))
    assert not conversation.is_kept()


@KINDS
@SENDERS
@pytest.mark.parametrize("ahead", [1, 1460, (WINDOW << SCALE) - 1])
def test_a_doubtful_reset_ends_the_connection_if_nothing_follows(
    conversation: Conversation, sender: str, ahead: int
) -> None:
    """It may be genuine: the acknowledgement of the last data was still on its way."""
    conversation.node.forward(conversation.reset(sender, ahead))
    assert conversation.removed() == (2 if conversation.masquerade else 1)


@KINDS
@SENDERS
def test_a_connection_that_goes_on_after_a_doubtful_reset_is_kept(
    conversation: Conversation, sender: str
) -> None:
    conversation.node.forward(conversation.reset(sender, 1460))
    conversation.node.forward(conversation.answer_to_reset(sender))
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
def test_a_syn_after_a_doubtful_reset_keeps_its_backend(conversation: Conversation) -> None:
    """The backend judges it, and answers by an acknowledgement if the connection lives."""
    conversation.node.forward(conversation.reset("client", 1460))
    assert conversation.is_kept()


@KINDS
@SENDERS
def test_a_packet_that_crossed_a_reset_does_not_revive_the_connection(
    conversation: Conversation, sender: str
) -> None:
    conversation.node.forward(conversation.reset(sender, 0))
    conversation.node.forward(conversation.answer_to_reset(sender))
    assert not conversation.is_kept()


@KINDS
def test_a_reset_during_the_handshake_does_not_end_what_is_established_after_it(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    conversation = Conversation(node, tcp_peers, masquerade)
    conversation.open(conversation.from_client("R", seq=77))
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
def test_a_backend_that_refuses_a_syn_on_a_connection_it_has_forgotten_ends_it(
    conversation: Conversation,
) -> None:
    conversation.node.forward(conversation.from_client("S", seq=5))
    conversation.node.forward(conversation.from_backend("RA", seq=0))
    assert not conversation.is_kept()


def assert_windows_are_not_scaled(conversation: Conversation) -> None:
    """Assert that a reset counts up to the end of the window as the segments say it, no further."""
    conversation.node.forward(conversation.reset("backend", WINDOW))
    assert conversation.removed() == 0
    conversation.node.forward(conversation.reset("backend", WINDOW - 1))
    assert conversation.removed() == (2 if conversation.masquerade else 1)


@KINDS
@pytest.mark.parametrize("scale", [None, 0], ids=["not scaled", "scaled by nothing"])
def test_a_window_is_as_large_as_the_options_of_its_sender_say(
    node: Node, tcp_peers: Peers, masquerade: bool, scale: int | None
) -> None:
    assert_windows_are_not_scaled(Conversation(node, tcp_peers, masquerade, scale).open())


class Malformed(Conversation):
    """Its SYNs have an option of length 1, and the scale of windows behind it."""

    def _numbered(self, packet: Packet, seq: int, ack: int) -> Packet:
        packet = super()._numbered(packet, seq, ack)
        if "S" in str(packet.payload.flags):
            packet.payload.dataofs = 7
            packet.payload.payload = Raw(b"\xfe\1\3\3\7\0\0\0")
        return packet


@KINDS
def test_what_stands_behind_an_option_of_impossible_length_is_not_read(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    """As by Linux (tcp_parse_options())."""
    assert_windows_are_not_scaled(Malformed(node, tcp_peers, masquerade, None).open())


@KINDS
@SENDERS
def test_a_reset_of_a_connection_whose_numbers_are_unknown_ends_it(
    conversation: Conversation, sender: str
) -> None:
    """Its entries are of an older build, and no packet has come since."""
    table = conversation.node.pinned.map("connections")
    record = conversation.node.pinned.layout.maps["connections"].value
    for key, value in list(table.items()):
        table.update(key, record.pack({**record.unpack(value), "acknowledged": 0, "window": 0}))
    conversation.node.forward(conversation.reset(sender, 1 << 30))
    assert not conversation.is_kept()


@SENDERS
def test_numbers_of_packets_that_xdp_forwarded_count(
    xdp_uplink: Uplink, tcp_peers: Peers, sender: str
) -> None:
    node = xdp_uplink.node
    conversation = Conversation(node, tcp_peers, masquerade=True).open()
    before = conversation.reset(sender, 0)
    for packet, sent, received in (
        (conversation.from_client("PA", 700), 700, 0),
        (conversation.from_backend("PA", 900), 0, 900),
    ):
        xdp_uplink.sends(packet)
        conversation.sent += sent
        conversation.received += received
    for packet in (conversation.from_client("A"), conversation.from_backend("A")):
        xdp_uplink.sends(packet)
    assert xdp_uplink.passes(before)
    node.forward(before)
    assert conversation.removed() == 0
    node.forward(conversation.reset(sender, 0))
    assert not conversation.is_kept()
