"""The addresses that any row names, as bits that spare most first packets every other question.

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

_SERVED, _ENDPOINTS = ("frontends", "node_addresses"), ("endpoints",)
"""Maps whose keys begin with an address, by what its bit says."""

_ADDRESS = 16
_ALL_BITS = 128
_BYTES = (1 << 20) // 8
_AT = {_SERVED: 4 * _ADDRESS, _ENDPOINTS: 4 * _ADDRESS + _BYTES}
"""Where the bits are: after network and mask of either family."""

_WORDS = struct.Struct("=4I")
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
        self._set(_AT[_SERVED], addresses)

    def add_endpoints(self, addresses: Iterable[bytes]) -> None:
        """The same for endpoints."""
        self._set(_AT[_ENDPOINTS], addresses)

    def _set(self, start: int, addresses: Iterable[bytes]) -> None:
        memory = self._memory
        for address in addresses:
            place = place_of(address)
            at, bit = start + (place >> 3), 1 << (place & 7)
            if not memory[at] & bit:
                memory[at] |= bit

    def refill(self) -> None:
        """Set the bits of all rows there are, and clear those of other frontends and addresses.

        Those of endpoints stay as long as the build: connections that an endpoint has may outlive
        its row, and whoever comes to it directly must not be taken for one of them.
        """
        for names, start in _AT.items():
            stays = names == _ENDPOINTS
            bits = bytearray(self._memory[start : start + _BYTES] if stays else _BYTES)
            for name in names:
                for key, _ in self._pinned.map(name).items():
                    place = place_of(key[:_ADDRESS])
                    bits[place >> 3] |= 1 << (place & 7)
            self._memory[start : start + _BYTES] = bytes(bits)

    def cover(self, networks: Iterable[Network]) -> None:
        """Let addresses within these networks matter too; the bits of all rows must be set."""
        networks = list(networks)
        for at, of_family in ((0, 4), (2 * _ADDRESS, 6)):
            ours = [one for one in networks if family(one.address) == of_family]
            self._memory[at : at + 2 * _ADDRESS] = _around(ours) if ours else _NOWHERE


def place_of(address: bytes) -> int:
    """Give the place of a packed address among the bits."""
    first, second, third, fourth = _WORDS.unpack(address)
    high, low = second << 32 | first, fourth << 32 | third
    mixed: int = (high * 0x9E3779B97F4A7C15 ^ low) & _M64
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
