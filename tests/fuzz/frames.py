"""Frames as bytes, made and compared without scapy, which would take most of the time of a run.

An end is an address of 16 packed bytes and a port, as keys of maps have them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from bpfsvc.base.address import family

TCP, UDP = 6, 17
PROTOCOLS = {"TCP": TCP, "UDP": UDP}

FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32

_LINKS = {
    4: bytes.fromhex("020000000002 020000000001 0800"),
    6: bytes.fromhex("020000000002 020000000001 86dd"),
}
LINK = 14
"""Bytes of the header of Ethernet."""

End = tuple[bytes, int]


class Segment(NamedTuple):
    """What is above the addresses and ports. ``damage`` is added to the transport's checksum."""

    flags: int = 0
    sequence: int = 0
    acknowledged: int = 0
    window: int = 0
    options: bytes = b""
    payload: bytes = b""
    damage: int = 0
    unsummed: bool = False
    """UDP over IPv4 without a checksum."""


def checksum_of(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit words, complemented."""
    if len(data) & 1:
        data += b"\0"
    # 2 ** 16 is 1 modulo 65535, so the number as a whole is the sum of its words.
    number = int.from_bytes(data, "big")
    return 0xFFFF - (number % 0xFFFF or 0xFFFF) if number else 0xFFFF


def frame(protocol: int, source: End, destination: End, segment: Segment) -> bytes:
    """Make a frame of TCP or UDP from one end to another."""
    version = family(source[0])
    if protocol == TCP:
        offset = 5 + len(segment.options) // 4 << 12 | segment.flags
        transport = struct.pack(
            ">HHIIHHHH",
            *(source[1], destination[1], segment.sequence, segment.acknowledged),
            *(offset, segment.window, 0, 0),
        )
        transport += segment.options + segment.payload
        at = 16
    else:
        length = 8 + len(segment.payload)
        transport = struct.pack(">HHHH", source[1], destination[1], length, 0) + segment.payload
        at = 6
    size = len(transport)
    if version == 4:
        addresses = source[0][12:] + destination[0][12:]
        header = (
            b"\x45\0" + struct.pack(">H", 20 + size) + b"\x12\x34\x40\0\x40" + bytes([protocol])
        )
        header += struct.pack(">H", checksum_of(header + addresses)) + addresses
    else:
        addresses = source[0] + destination[0]
        header = b"\x60\0\0\0" + struct.pack(">HBB", size, protocol, 64) + addresses
    if segment.unsummed and version == 4 and protocol == UDP:
        checksum = 0
    else:
        pseudo = addresses + struct.pack(">IHH", size, 0, protocol)
        checksum = checksum_of(pseudo + transport)
        checksum = (checksum + segment.damage) % 0xFFFF or 0xFFFF
    transport = transport[:at] + struct.pack(">H", checksum) + transport[at + 2 :]
    return _LINKS[version] + header + transport


class Place(NamedTuple):
    """Where the fields of a frame are that a translation changes."""

    source: int
    destination: int
    ports: int
    checksum: int


PLACES = {
    (4, TCP): Place(26, 30, 34, 50),
    (4, UDP): Place(26, 30, 34, 40),
    (6, TCP): Place(22, 38, 54, 70),
    (6, UDP): Place(22, 38, 54, 60),
}

_IPV4_CHECKSUM = 24


def ends(data: bytes) -> tuple[int, End, End] | None:
    """Return protocol, source and destination of a frame; None if it is no TCP or UDP."""
    version = 4 if data[12:14] == b"\x08\0" else 6
    protocol = data[23] if version == 4 else data[20]
    place = PLACES.get((version, protocol))
    if place is None or len(data) < place.checksum + 2:
        return None
    ports = struct.unpack_from(">HH", data, place.ports)
    if version == 4:
        prefix = bytes(10) + b"\xff\xff"
        source, destination = prefix + data[26:30], prefix + data[30:34]
    else:
        source, destination = data[22:38], data[38:54]
    return protocol, (source, ports[0]), (destination, ports[1])


def difference(before: bytes, after: bytes, source: End, destination: End) -> str:
    """Return how ``after`` is not ``before`` with other ends; empty if it is.

    A translation keeps the error of a checksum: a damaged packet must stay damaged.
    """
    version = 4 if before[12:14] == b"\x08\0" else 6
    protocol = before[23] if version == 4 else before[20]
    place = PLACES[version, protocol]
    checksum = place.checksum
    if len(after) != len(before):
        return f"{len(after)} bytes instead of {len(before)}"
    expected = bytearray(before)
    if version == 4:
        expected[26:34] = source[0][12:] + destination[0][12:]
        expected[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2] = after[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2]
    else:
        expected[22:54] = source[0] + destination[0]
    struct.pack_into(">HH", expected, place.ports, source[1], destination[1])
    expected[checksum : checksum + 2] = after[checksum : checksum + 2]
    if expected != after:
        return _other_bytes(expected, after)
    if version == 4 and not _same_sum(before, after, (_IPV4_CHECKSUM, 34)):
        return "the header's checksum is wrong"
    was, is_now = before[checksum : checksum + 2], after[checksum : checksum + 2]
    if protocol == UDP and bool(any(was)) != bool(any(is_now)):
        return "a datagram has a checksum that had none, or the other way round"
    if any(was) or protocol != UDP:
        spans = ((place.source, place.ports + 4), (checksum, checksum + 2))
        if not _same_sum(before, after, *spans):
            return "the error of the checksum has changed"
    return ""


def _same_sum(before: bytes, after: bytes, *spans: tuple[int, int]) -> bool:
    sums = [
        sum(int.from_bytes(data[start:end], "big") for start, end in spans) % 0xFFFF
        for data in (before, after)
    ]
    return sums[0] == sums[1]


def _other_bytes(expected: bytearray, after: bytes) -> str:
    at = next(n for n, (was, now) in enumerate(zip(expected, after, strict=True)) if was != now)
    return f"byte {at} is {after[at]:#04x} instead of {expected[at]:#04x}"


def refusal_difference(before: bytes, after: bytes) -> str:
    """Return how ``after`` is no refusal of the packet ``before``; empty if it is one.

    Port unreachable, or a reset of TCP; from whom the packet was sent to, to its sender.
    """
    known = ends(before)
    assert known
    protocol, source, destination = known
    version = 4 if before[12:14] == b"\x08\0" else 6
    if after[0:6] != before[6:12] or after[6:12] != before[0:6]:
        return "the refusal is not for the neighbour that sent the packet"
    addresses = after[26:34] if version == 4 else after[22:54]
    start = 12 if version == 4 else 0
    if addresses != destination[0][start:] + source[0][start:]:
        return "the refusal has other addresses"
    kind = after[23] if version == 4 else after[20]
    head = 34 if version == 4 else 54
    if kind == TCP and protocol == TCP:
        return _reset_difference(before, after, source, destination)
    if (version, kind) not in ((4, 1), (6, 58)):
        return f"the refusal is of protocol {kind}"
    if after[head : head + 2] != (b"\x03\x03" if version == 4 else b"\x01\x04"):
        return f"the refusal is of type and code {tuple(after[head : head + 2])}"
    quote = after[head + 8 :]
    if not quote or before[LINK : LINK + len(quote)] != quote:
        return "the refusal quotes another packet"
    pseudo = b"" if version == 4 else addresses + struct.pack(">II", len(after) - head, 58)
    if checksum_of(pseudo + after[head:]) != 0:
        return "the refusal has a wrong checksum"
    return ""


def _reset_difference(before: bytes, after: bytes, source: End, destination: End) -> str:
    place = PLACES[4 if before[12:14] == b"\x08\0" else 6, TCP]
    if struct.unpack_from(">HH", after, place.ports) != (destination[1], source[1]):
        return "the reset has other ports"
    flags = before[place.ports + 13]
    if not after[place.ports + 13] & RST:
        return "the answer is no reset"
    if (
        flags & ACK
        and after[place.ports + 4 : place.ports + 8] != before[place.ports + 8 : place.ports + 12]
    ):
        return "the reset does not have the acknowledged sequence number"
    addresses = after[place.source : place.ports]
    pseudo = addresses + struct.pack(">IHH", len(after) - place.ports, 0, TCP)
    if checksum_of(pseudo + after[place.ports :]) != 0:
        return "the reset has a wrong checksum"
    return ""
