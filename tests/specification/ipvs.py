"""IPVS' schedulers as the Linux kernel has them, followed step by step.

Written from the kernel's C and not from the product: every scheduler is asked for one connection
after the other, as the kernel is, and there is no table but those that the kernel has. The file of
the kernel that a rule comes from stands at the rule. ``Destination`` is a real server: its address
as 16 bytes (IPv4 mapped into IPv6), its port and its weight, 0 for quiesced. An answer is the
position of a destination in the list, or None where the kernel refuses the connection.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

U32 = 2**32
U64 = 2**64


class Destination(NamedTuple):
    """A real server of a virtual service."""

    address: bytes
    port: int
    weight: int


# -- The hashes: include/linux/hash.h, lib/siphash.c ----------------------------------------------


def fold(address: bytes) -> int:
    """Return an address as schedulers hash it: a number of 32 bits in host order.

    IPv6: the four words, xored.
    """
    words = struct.unpack("!4I", address)
    if words[:3] == (0, 0, 0xFFFF):
        return int(words[3])
    return int(words[0] ^ words[1] ^ words[2] ^ words[3])


def hash_32(value: int, bits: int) -> int:
    """Return the upper bits of the product with the golden ratio (hash_32)."""
    return (value * 0x61C88647) % U32 >> (32 - bits)


def rotate_left(value: int, bits: int) -> int:
    """Rotate a number of 64 bits (rol64)."""
    return (value << bits | value >> (64 - bits)) % U64


def sip_round(v: list[int]) -> None:
    """Do one SipRound."""
    v[0] = (v[0] + v[1]) % U64
    v[1] = rotate_left(v[1], 13) ^ v[0]
    v[0] = rotate_left(v[0], 32)
    v[2] = (v[2] + v[3]) % U64
    v[3] = rotate_left(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) % U64
    v[3] = rotate_left(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) % U64
    v[1] = rotate_left(v[1], 17) ^ v[2]
    v[2] = rotate_left(v[2], 32)


def siphash_1_3(message: bytes, key: tuple[int, int]) -> int:
    """Return SipHash-1-3, which hsiphash is on machines of 64 bits."""
    v = [
        0x736F6D6570736575 ^ key[0],
        0x646F72616E646F6D ^ key[1],
        0x6C7967656E657261 ^ key[0],
        0x7465646279746573 ^ key[1],
    ]
    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def hsiphash(value: int, key: tuple[int, int]) -> int:
    """Return the hash of a number of 32 bits: a number of 32 bits (hsiphash_1u32)."""
    return siphash_1_3(struct.pack("<I", value), key) % U32


# -- ip_vs_rr.c and ip_vs_wrr.c -------------------------------------------------------------------


def rr(destinations: Sequence[Destination]) -> Iterator[int]:
    """Yield the destinations of one connection after the other; nothing if none has a weight."""
    position = -1
    while any(one.weight for one in destinations):
        position = (position + 1) % len(destinations)
        if destinations[position].weight > 0:
            yield position


def wrr(destinations: Sequence[Destination]) -> Iterator[int]:
    """Yield the destinations of one connection after the other.

    The list is passed again and again, each time with a lower threshold (``cw``) that a weight must
    reach.
    """
    weights = [one.weight for one in destinations]
    step = math.gcd(*weights) or 1
    highest = max(weights, default=0) - (step - 1)
    threshold = highest
    position = -1
    while any(weights):
        position += 1
        if position == len(weights):
            position = -1
            threshold -= step
            if threshold <= 0:
                threshold = highest
        elif weights[position] >= threshold:
            yield position


# -- ip_vs_sh.c and ip_vs_dh.c --------------------------------------------------------------------

BUCKETS = 256


def sh_hash(address: bytes, port: int = 0, offset: int = 0) -> int:
    """Return the bucket of a client (ip_vs_sh_hashkey)."""
    return (offset + hash_32((port + fold(address)) % U32, 8)) % BUCKETS


def sh_buckets(destinations: Sequence[Destination]) -> list[int]:
    """Return the destination of each bucket: as many in a row as its weight, one for 0."""
    buckets: list[int] = []
    position, filled = 0, 0
    while destinations and len(buckets) < BUCKETS:
        buckets.append(position)
        filled += 1
        if filled >= destinations[position].weight:
            position, filled = (position + 1) % len(destinations), 0
    return buckets


def sh(
    destinations: Sequence[Destination],
    buckets: Sequence[int],
    address: bytes,
    port: int = 0,
    *,
    fallback: bool = False,
) -> int | None:
    """Return the destination of a client. ``port`` is 0 without the flag sh-port."""
    if not destinations:
        return None
    first = sh_hash(address, port)
    if destinations[buckets[first]].weight > 0:
        return buckets[first]
    for offset in range(BUCKETS) if fallback else ():
        bucket = sh_hash(address, port, (offset + first) % BUCKETS)
        if destinations[buckets[bucket]].weight > 0:
            return buckets[bucket]
    return None


def dh_hash(address: bytes) -> int:
    """Return the bucket of the address that the client asked for (ip_vs_dh_hashkey)."""
    return hash_32(fold(address), 8)


def dh(destinations: Sequence[Destination], address: bytes) -> int | None:
    """Return the destination of all that is sent to an address. Buckets are dealt in turn."""
    if not destinations:
        return None
    position = dh_hash(address) % len(destinations)
    return position if destinations[position].weight > 0 else None


# -- ip_vs_mh.c -----------------------------------------------------------------------------------

PRIMES = (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)
FIRST_KEY = (2654435761, 2654435761)
SECOND_KEY = (2654446892, 2654446892)


def mh_hash(address: bytes, port: int = 0, key: tuple[int, int] = FIRST_KEY) -> int:
    """Return the hash of a client or of a destination (ip_vs_mh_hashkey)."""
    return hsiphash((port + fold(address)) % U32, key)


def mh_turns(destinations: Sequence[Destination], tab_index: int) -> list[int]:
    """Return how many slots in a row a destination takes when it has its turn.

    That is its weight, divided by what all weights have in common, and shifted so that the highest
    has ``tab_index / 2`` bits. ``tab_index`` is CONFIG_IP_VS_MH_TAB_INDEX.
    """
    weights = [one.weight for one in destinations]
    common = math.gcd(*weights)
    if common < 1:
        return [0] * len(weights)
    shift = max((max(weights) // common).bit_length() - tab_index // 2, 0)
    return [(weight // common >> shift) or int(weight != 0) for weight in weights]


def mh_table(destinations: Sequence[Destination], tab_index: int = 12) -> list[int | None]:
    """Return the destination of each slot; all of them None if no destination has a weight.

    The kernel takes the last weight that was not 0. Here all destinations came with the weight that
    they have, and one that came with 0 has no slots.
    """
    size = PRIMES[tab_index - 8]
    turns = mh_turns(destinations, tab_index)
    places = [mh_hash(one.address, one.port, FIRST_KEY) % size for one in destinations]
    skips = [mh_hash(one.address, one.port, SECOND_KEY) % (size - 1) + 1 for one in destinations]
    table: list[int | None] = [None] * size
    left = size if any(turns) else 0
    while left:
        for position, turn in enumerate(turns):
            for _ in range(min(turn, left)):
                while table[places[position]] is not None:
                    places[position] = (places[position] + skips[position]) % size
                table[places[position]] = position
                left -= 1
    return table


def mh(table: Sequence[int | None], address: bytes, port: int = 0) -> int | None:
    """Return the destination of a client. ``port`` is 0 without the flag mh-port."""
    return table[mh_hash(address, port) % len(table)]
