"""Frames as bytes, made and compared without scapy, which would take most of the time of a run.

An end is an address of 16 packed bytes and a port, as keys of maps have them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from bpfsvc.base.address import family

TCP, UDP, SCTP = 6, 17, 132
PROTOCOLS = {"TCP": TCP, "UDP": UDP, "SCTP": SCTP}

SCTP_DATA, SCTP_INIT, SCTP_INIT_ACK, SCTP_ABORT = 0, 1, 2, 6
"""Types of chunks (RFC 9260, 3.2)."""

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
    chunk: int = SCTP_DATA
    extension: bytes = b""
    """Options of IPv4, or extension headers of IPv6; the first byte of those is their type."""


def checksum_of(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit words, complemented."""
    if len(data) & 1:
        data += b"\0"
    # 2 ** 16 is 1 modulo 65535, so the number as a whole is the sum of its words.
    number = int.from_bytes(data, "big")
    return 0xFFFF - (number % 0xFFFF or 0xFFFF) if number else 0xFFFF


def frame(protocol: int, source: End, destination: End, segment: Segment) -> bytes:
    """Make a frame of TCP, UDP or SCTP from one end to another."""
    version = family(source[0])
    start = 12 if version == 4 else 0
    addresses = source[0][start:] + destination[0][start:]
    transport = _transport(protocol, addresses, source[1], destination[1], segment)
    return _LINKS[version] + _header(version, protocol, addresses, segment, transport) + transport


def _header(
    version: int, protocol: int, addresses: bytes, segment: Segment, transport: bytes
) -> bytes:
    extension = segment.extension
    if version == 6:
        first, chain = protocol, b""
        if extension:
            first, chain = extension[0], bytes([protocol]) + extension[1:]
        size = len(chain) + len(transport)
        return struct.pack(">IHBB", 0x60000000, size, first, 64) + addresses + chain
    words = 5 + len(extension) // 4
    size = words * 4 + len(transport)
    header = struct.pack(">BBHHHBB", 0x40 | words, 0, size, 0x1234, 0x4000, 64, protocol)
    checksum = checksum_of(header + addresses + extension)
    return header + struct.pack(">H", checksum) + addresses + extension


def _transport(
    protocol: int, addresses: bytes, source: int, destination: int, segment: Segment
) -> bytes:
    if protocol == SCTP:
        chunk = struct.pack(">BBH", segment.chunk, 3, 16 + len(segment.payload))
        chunk += bytes(12) + segment.payload + bytes(-len(segment.payload) % 4)
        head = struct.pack(">HHI", source, destination, 0x0BADCAFE)
        checksum = crc32c(head + bytes(4) + chunk) ^ segment.damage
        return head + struct.pack("<I", checksum) + chunk
    if protocol == TCP:
        offset = 5 + len(segment.options) // 4 << 12 | segment.flags
        made = struct.pack(
            ">HHIIHHHH",
            *(source, destination, segment.sequence, segment.acknowledged),
            *(offset, segment.window, 0, 0),
        )
        made += segment.options + segment.payload
    else:
        made = struct.pack(">HHHH", source, destination, 8 + len(segment.payload), 0)
        made += segment.payload
    at = CHECKSUMS[protocol]
    if segment.unsummed and protocol == UDP and len(addresses) == 8:
        return made
    pseudo = addresses + struct.pack(">IHH", len(made), 0, protocol)
    checksum = (checksum_of(pseudo + made) + segment.damage) % 0xFFFF or 0xFFFF
    return made[:at] + struct.pack(">H", checksum) + made[at + 2 :]


CHECKSUMS = {TCP: 16, UDP: 6, SCTP: 8}
"""Where the checksum is in the transport's header."""

_IPV4_CHECKSUM = 24
_EXTENSIONS = (0, 43, 44, 60)
_FRAGMENT = 44


def version_of(data: bytes) -> int:
    """Return the family of a frame: 4 or 6."""
    return 4 if data[12] == 8 else 6


def transport_of(data: bytes | bytearray) -> tuple[int, int]:
    """Return the protocol of a frame and where its transport begins."""
    if data[12] == 8:
        return data[23], LINK + (data[14] & 15) * 4
    protocol, at = data[20], LINK + 40
    while protocol in _EXTENSIONS:
        length = 8 if protocol == _FRAGMENT else (data[at + 1] + 1) * 8
        protocol, at = data[at], at + length
    return protocol, at


def ends(data: bytes) -> tuple[int, End, End] | None:
    """Return protocol, source and destination of a frame; None if it has no ports."""
    protocol, at = transport_of(data)
    if protocol not in CHECKSUMS or len(data) < at + 8:
        return None
    source, destination = addresses_of(data)
    ports = struct.unpack_from(">HH", data, at)
    return protocol, (source, ports[0]), (destination, ports[1])


def addresses_of(data: bytes) -> tuple[bytes, bytes]:
    """Return the packed addresses of a frame."""
    if data[12] == 8:
        return _V4 + data[26:30], _V4 + data[30:34]
    return data[22:38], data[38:54]


_V4 = bytes(10) + b"\xff\xff"


def is_a_hop_on(before: bytes, after: bytes) -> bool:
    """True if a frame has a hop less left than before."""
    at = _hops_at(before)
    return before[12:14] == after[12:14] and after[at] == before[at] - 1


def a_hop_back(before: bytes, after: bytes) -> bytes:
    """Return a frame with the hardware addresses and the hops that it had before."""
    at = _hops_at(before)
    made = bytearray(before[:12] + after[12:])
    made[at] = before[at]
    if before[12] == 8:
        field = slice(_IPV4_CHECKSUM, _IPV4_CHECKSUM + 2)
        checksum = int.from_bytes(made[field], "big") - (1 << 8)
        made[field] = (checksum % 0xFFFF).to_bytes(2, "big")
    return bytes(made)


def _hops_at(data: bytes) -> int:
    return 22 if data[12] == 8 else 21


def difference(
    before: bytes, after: bytes, source: End, destination: End, later: bool = False
) -> str:
    """Return how ``after`` is not ``before`` with other ends; empty if it is.

    A translation keeps the error of a checksum: a damaged packet must stay damaged. ``later``: a
    fragment without ports.
    """
    protocol, at = transport_of(before)
    if len(after) != len(before):
        return f"{len(after)} bytes instead of {len(before)}"
    expected = bytearray(before)
    v4 = before[12] == 8
    if v4:
        expected[26:34] = source[0][12:] + destination[0][12:]
        expected[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2] = after[_IPV4_CHECKSUM : _IPV4_CHECKSUM + 2]
    else:
        expected[22:54] = source[0] + destination[0]
    field, size = at + CHECKSUMS[protocol], 4 if protocol == SCTP else 2
    if not later:
        struct.pack_into(">HH", expected, at, source[1], destination[1])
        expected[field : field + size] = after[field : field + size]
    if expected != after:
        return other_bytes(expected, after)
    if v4 and not _same_sum(before, after, (_IPV4_CHECKSUM, 34)):
        return "the header's checksum is wrong"
    return "" if later else _checksum_difference(before, after, protocol, at)


def _checksum_difference(before: bytes, after: bytes, protocol: int, at: int) -> str:
    field = at + CHECKSUMS[protocol]
    if protocol == SCTP:
        errors = [
            crc32c(data[at:field] + bytes(4) + data[field + 4 :])
            ^ int.from_bytes(data[field : field + 4], "little")
            for data in (before, after)
        ]
        return "" if errors[0] == errors[1] else "the error of the checksum has changed"
    was, is_now = before[field : field + 2], after[field : field + 2]
    if protocol == UDP and bool(any(was)) != bool(any(is_now)):
        return "a datagram has a checksum that had none, or the other way round"
    addresses = (26, 34) if before[12] == 8 else (22, 54)
    is_summed = any(was) or protocol != UDP
    if is_summed and not _same_sum(before, after, addresses, (at, at + 4), (field, field + 2)):
        return "the error of the checksum has changed"
    return ""


def _same_sum(before: bytes, after: bytes, *spans: tuple[int, int]) -> bool:
    sums = [
        sum(int.from_bytes(data[start:end], "big") for start, end in spans) % 0xFFFF
        for data in (before, after)
    ]
    return sums[0] == sums[1]


def other_bytes(expected: bytes | bytearray, after: bytes) -> str:
    """Return where a frame is not as expected."""
    if len(after) != len(expected):
        return f"{len(after)} bytes instead of {len(expected)}"
    at = next(n for n, (was, now) in enumerate(zip(expected, after, strict=True)) if was != now)
    return f"byte {at} is {after[at]:#04x} instead of {expected[at]:#04x}"


def fragments_of(data: bytes, number: int, size: int) -> list[bytes]:
    """Cut a frame without extensions into fragments of so many bytes, a multiple of 8."""
    protocol, at = transport_of(data)
    payload = data[at:]
    made = []
    for offset in range(0, len(payload), size):
        part = payload[offset : offset + size]
        more = offset + size < len(payload)
        if data[12] == 8:
            field = offset // 8 | more << 13
            header = struct.pack(">HHHHBB", 0x4500, 20 + len(part), number, field, 64, protocol)
            checksum = struct.pack(">H", checksum_of(header + data[26:34]))
            made.append(data[:LINK] + header + checksum + data[26:34] + part)
        else:
            header = struct.pack(">IHBB", 0x60000000, 8 + len(part), _FRAGMENT, 64)
            extension = struct.pack(">BBHI", protocol, 0, offset | more, number)
            made.append(data[:LINK] + header + data[22:54] + extension + part)
    return made


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the checksum of SCTP (RFC 9260, appendix A), with the first byte the lowest."""
    value, table = 0xFFFFFFFF, _CRC32C
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


ICMP_ERRORS = {4: ((3, 4), (11, 0), (3, 3), (3, 1)), 6: ((2, 0), (3, 0), (1, 4), (1, 3))}
"""Types and codes: too big, time exceeded, port and host unreachable."""

_QUOTED_CHECKSUM = b"\x12\x34\x56\x78"


def icmp_error(
    sender: bytes, receiver: bytes, quote: tuple[int, End, End], kind: int, length: int
) -> bytes:
    """Make the frame of an error about a packet that was sent between two ends.

    ``quote``: its protocol, source and destination. ``length``: bytes of it behind its IP header.
    The quoted transport's checksum is any: a translation leaves it as it is.
    """
    protocol, source, destination = quote
    version = family(sender)
    quoted = bytearray(
        frame(protocol, source, destination, Segment(ACK, 7, 9, 100, payload=b"q" * 20))
    )
    _, at = transport_of(quoted)
    field, size = at + CHECKSUMS[protocol], 4 if protocol == SCTP else 2
    quoted[field : field + size] = _QUOTED_CHECKSUM[:size]
    message = bytes((*ICMP_ERRORS[version][kind], 0, 0)) + struct.pack(">I", 1400)
    message += quoted[LINK : at + length]
    start = 12 if version == 4 else 0
    addresses = sender[start:] + receiver[start:]
    number = 1 if version == 4 else 58
    pseudo = b"" if version == 4 else addresses + struct.pack(">II", len(message), number)
    checksum = struct.pack(">H", checksum_of(pseudo + message))
    message = message[:2] + checksum + message[4:]
    return _LINKS[version] + _header(version, number, addresses, Segment(), message) + message


def refusal_difference(before: bytes, after: bytes) -> str:
    """Return how ``after`` is no refusal of the packet ``before``; empty if it is one.

    Port unreachable, or a reset of TCP; from whom the packet was sent to, to its sender.
    """
    known = ends(before)
    assert known
    protocol, source, destination = known
    version = version_of(before)
    if after[0:6] != before[6:12] or after[6:12] != before[0:6]:
        return "the refusal is not for the neighbour that sent the packet"
    addresses = after[26:34] if version == 4 else after[22:54]
    start = 12 if version == 4 else 0
    if addresses != destination[0][start:] + source[0][start:]:
        return "the refusal has other addresses"
    # A reset keeps the options and extension headers of the packet.
    kind, head = transport_of(after)
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
    _, at = transport_of(before)
    _, start = transport_of(after)
    if struct.unpack_from(">HH", after, start) != (destination[1], source[1]):
        return "the reset has other ports"
    if not after[start + 13] & RST:
        return "the answer is no reset"
    if before[at + 13] & ACK and after[start + 4 : start + 8] != before[at + 8 : at + 12]:
        return "the reset does not have the acknowledged sequence number"
    addresses = after[26:34] if after[12] == 8 else after[22:54]
    pseudo = addresses + struct.pack(">IHH", len(after) - start, 0, TCP)
    if checksum_of(pseudo + after[start:]) != 0:
        return "the reset has a wrong checksum"
    return ""
