"""The segment of an event: its kinds of numbers become numbers."""

from __future__ import annotations

from tests.fuzz.connections import Connection, Peer, is_opening
from tests.fuzz.events import EXTENSIONS, Packet, Sequence
from tests.fuzz.frames import ACK, SCTP, SCTP_INIT, SYN, TCP, Segment


def segment_of(protocol: int, connection: Connection | None, event: Packet) -> Segment:
    """Return what a packet has above its ports, as its connection is now."""
    payload = bytes(event.length)
    extensions = EXTENSIONS[event.family]
    # A fragment with them is rare, and it is left out.
    extension = b"" if event.cut else extensions[event.extension % len(extensions)]
    if protocol != TCP:
        return Segment(
            payload=payload,
            damage=event.damage,
            unsummed=event.unsummed,
            chunk=event.flags,
            extension=extension,
        )
    if connection is None:
        me, other = Peer(event.number), Peer(0)
    else:
        me = connection.peers[event.sender]
        other = connection.peers[1 - event.sender]
    expected = me.next if other.acknowledged is None else other.acknowledged
    sequence = {
        Sequence.NEXT: me.next,
        Sequence.EXPECTED: expected,
        Sequence.IN_WINDOW: expected + 1 + event.number % max(1, other.window),
        Sequence.FAR: expected + (1 << 30),
        Sequence.OLD: expected - 1000,
    }[Sequence(event.sequence)]
    acknowledged = other.next if event.flags & ACK else 0
    if event.forged:
        acknowledged += 1 << 30
    options = b""
    if event.flags & SYN and event.number & 3:
        # A maximal segment, nothing, and the shift of the window.
        options = b"\x02\x04\x05\xb4\x01\x03\x03" + bytes([event.number >> 8 & 7])
    return Segment(
        event.flags,
        sequence & 0xFFFFFFFF,
        acknowledged & 0xFFFFFFFF,
        1000 + (event.number >> 16 & 0x7FFF),
        options,
        payload,
        event.damage,
        extension=extension,
    )


def is_first(protocol: int, segment: Segment) -> bool:
    """True if a packet can open a connection."""
    if protocol == SCTP:
        return segment.chunk == SCTP_INIT
    return protocol != TCP or is_opening(segment.flags)
