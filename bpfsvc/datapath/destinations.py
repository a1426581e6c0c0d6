"""The destinations that any row names, as bits that spare most first packets every other question.

A bit is set before the row is written and cleared only when all rows are gone through again, so
that the programs (``bpf/destinations.h``) may trust a bit that is not set. The map is written like
memory: a system call for each of fifty thousand addresses would cost more than the bits save.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

from bpfsvc.address import family
from bpfsvc.datapath.pins import Pinned
from bpfsvc.rows import Network

_SERVED, _BACKENDS = ("frontends", "node_addresses"), ("endpoints",)
"""Maps whose keys begin with a destination, by what its bit says."""

_ADDRESS = 16
_BACKEND = 20
"""Bytes of a key that count: an address, or all with port and protocol."""

_ALL_BITS = 128
_BYTES = (1 << 20) // 8
_AT = {_SERVED: (4 * _ADDRESS, _ADDRESS), _BACKENDS: (4 * _ADDRESS + _BYTES, _BACKEND)}
"""Where the bits are, after network and mask of either family, and by how much of a key."""

_WORDS = struct.Struct("=4I")
_REST = struct.Struct("!HB")
_M64 = (1 << 64) - 1
_NOWHERE = b"\xff" * _ADDRESS + bytes(_ADDRESS)
"""A network and a mask that let no address be within."""


class Destinations:
    """The bits of one build's map."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        found = pinned.map("destinations")
        self._memory = mmap.mmap(found.fd, found.value_size)

    def add(self, addresses: Iterable[bytes]) -> None:
        """Set the bits of packed addresses, of which rows of frontends or the node come next."""
        self._set(_AT[_SERVED][0], addresses)

    def add_backends(self, keys: Iterable[bytes]) -> None:
        """The same by keys of the map ``endpoints``."""
        self._set(_AT[_BACKENDS][0], keys)

    def _set(self, start: int, destinations: Iterable[bytes]) -> None:
        memory = self._memory
        for destination in destinations:
            place = place_of(destination)
            at, bit = start + (place >> 3), 1 << (place & 7)
            if not memory[at] & bit:
                memory[at] |= bit

    def refill(self) -> None:
        """Set the bits of all rows there are, and clear those of other frontends and addresses.

        Those of backends stay as long as the build: connections that one has may outlive its row,
        and whoever comes to it directly must not be taken for one of them.
        """
        for names, (start, size) in _AT.items():
            stays = names == _BACKENDS
            bits = bytearray(self._memory[start : start + _BYTES] if stays else _BYTES)
            for name in names:
                for key, _ in self._pinned.map(name).items():
                    place = place_of(key[:size])
                    bits[place >> 3] |= 1 << (place & 7)
            self._memory[start : start + _BYTES] = bytes(bits)

    def cover(self, networks: Iterable[Network]) -> None:
        """Let addresses within these networks matter too; the bits of all rows must be set."""
        networks = list(networks)
        for at, of_family in ((0, 4), (2 * _ADDRESS, 6)):
            ours = [one for one in networks if family(one.address) == of_family]
            self._memory[at : at + 2 * _ADDRESS] = _around(ours) if ours else _NOWHERE


def place_of(destination: bytes) -> int:
    """Give the place among the bits of a packed address, or of one with port and protocol."""
    first, second, third, fourth = _WORDS.unpack_from(destination)
    mixed: int = (second << 32 | first) * 0x9E3779B97F4A7C15 ^ (fourth << 32 | third)
    if len(destination) > _ADDRESS:
        port, protocol = _REST.unpack_from(destination, _ADDRESS)
        mixed ^= (protocol << 16 | port) * 0xC4CEB9FE1A85EC53
    return (mixed * 0xFF51AFD7ED558CCD & _M64) >> 44


def _around(networks: list[Network]) -> bytes:
    """Give network and mask of the smallest network that holds all of these."""
    first = int.from_bytes(networks[0].address, "big")
    bits = min(network.bits for network in networks)
    for network in networks:
        differing = first ^ int.from_bytes(network.address, "big")
        bits = min(bits, _ALL_BITS - differing.bit_length())
    mask = _M64 << 64 | _M64
    mask = mask >> (_ALL_BITS - bits) << (_ALL_BITS - bits)
    return (first & mask).to_bytes(_ADDRESS, "big") + mask.to_bytes(_ADDRESS, "big")
