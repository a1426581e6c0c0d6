"""The minimiser, on histories whose failure is known."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.events import Collect, Event, Packet, Pause, Write
from tests.fuzz.frames import ACK, PSH, SYN
from tests.fuzz.minimise import minimised

PACKET = Packet(4, 1, 0, 0, 0, PSH | ACK, 2, True, 64, 7, True, 99)
OPENING = PACKET._replace(flags=SYN, sequence=0)


def plain(packet: Packet) -> Packet:
    """Return a packet without its details."""
    flags = packet.flags & ~PSH
    return packet._replace(
        forged=False, damage=0, unsummed=False, number=0, sequence=0, length=0, flags=flags
    )


def fails(events: Sequence[Event]) -> bool:
    """True if there is an opening, later a collection, and then a packet with data."""
    wanted = [
        lambda event: isinstance(event, Packet) and event.flags == SYN,
        lambda event: isinstance(event, Collect),
        lambda event: isinstance(event, Packet) and event.length > 0,
    ]
    at = 0
    for event in events:
        if at < len(wanted) and wanted[at](event):
            at += 1
    return at == len(wanted)


def test_only_what_is_needed_is_kept_and_made_plain() -> None:
    noise: list[Event] = [Pause(5_000_000_000), Write(1, 2), PACKET, Collect()]
    events = [*noise * 20, OPENING, *noise * 20, PACKET, *noise * 5]
    assert minimised(events, fails) == [
        plain(OPENING),
        Collect(),
        plain(PACKET)._replace(length=64),
    ]


def test_it_ends_after_so_many_tries() -> None:
    tried = 0

    def counted(events: Sequence[Event]) -> bool:
        nonlocal tried
        tried += 1
        return fails(events)

    minimised([OPENING, *[PACKET] * 500, Collect(), PACKET], counted, tries=20)
    assert tried == 20
