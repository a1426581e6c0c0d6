"""Messages of netlink that are cut off or damaged: an error that callers expect, or no message."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink import nlmsg
from bpfsvc.datapath.netlink.conntrack import messages
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow

FLOW = TranslatedFlow(pack("10.0.0.1"), pack("10.0.0.2"), 1, 2, 6)
WHOLE = nlmsg.pack_request(
    messages.NEW,
    0,
    bytes(messages.FAMILY_BYTES)
    + messages.pack_tuple(messages.TUPLE_ORIGINAL, FLOW)
    + messages.pack_tuple(messages.TUPLE_REPLY, FLOW.reverse()),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a message of conntrack with up to three other bytes, cut off anywhere, or bytes."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=100))
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


def flows(data: bytes) -> list[TranslatedFlow | None]:
    """Return the flows of all messages, as callers read them."""
    return [
        messages.read_tuple(parts[messages.TUPLE_ORIGINAL])
        for message in nlmsg.read_messages(data)
        if (parts := nlmsg.attributes(message.body[messages.FAMILY_BYTES :]))
        and messages.TUPLE_ORIGINAL in parts
        and message.error == 0
    ]


def test_a_whole_message_is_read() -> None:
    assert flows(WHOLE) == [FLOW]


@settings(max_examples=2000, deadline=None)
@given(damaged())
def test_a_damaged_message_ends(data: bytes) -> None:
    with suppress(OSError):
        flows(data)
