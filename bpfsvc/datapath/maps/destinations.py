"""The destinations that have an entry in any map, as bits: most first packets need no other look.

A bit is set before the entry is written and cleared only when all entries are gone through again,
so the programs (``bpf/maps/destinations.h``) may trust a bit that is not set. The map is written
like memory: a system call for each of fifty thousand addresses would cost more than the bits save.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

from bpfsvc.base.address import family
from bpfsvc.base.networks import Network
from bpfsvc.datapath.maps.frontend_ports import FrontendPorts
from bpfsvc.datapath.maps.pins import Pinned

_FRONTENDS = "frontends"
_SERVED, _BACKENDS = (_FRONTENDS, "node_addresses"), ("endpoints",)
"""Maps with keys that begin with a destination, by the field with their bits."""

_ADDRESS = 16
_BACKEND = 20
"""Bytes of a key that count: an address, or all with port and protocol."""

_ALL_BITS = 128

_WORDS = struct.Struct("=4I")
_REST = struct.Struct("!HB")
_M64 = (1 << 64) - 1
_NO_NETWORK = b"\xff" * _ADDRESS + bytes(_ADDRESS)
"""A network and a mask without any address."""


class Destinations:
    """The bits of one build's map."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        bits = pinned.map("destinations")
        self._memory = mmap.mmap(bits.fd, bits.value_size)
        layout = pinned.layout
        at = {name: offset for name, _, offset in layout.maps["destinations"].value.places()}
        # Where the bits of these maps are, and by how many bytes of a key they are found.
        self._parts = {_SERVED: (at["served"], _ADDRESS), _BACKENDS: (at["backends"], _BACKEND)}
        self._networks = {4: at["network_v4"], 6: at["network_v6"]}
        self._bytes = layout.constant("DESTINATION_BITS") // 8
        self._shift = 64 - layout.constant("DESTINATION_ORDER")
        self._high = layout.constant("DESTINATION_HASH_HIGH")
        self._rest = layout.constant("DESTINATION_HASH_REST")
        self._all = layout.constant("DESTINATION_HASH_ALL")
        self._ports = FrontendPorts(pinned)
        self._hidden: list[tuple[int, bytes]] = []

    def add(self, addresses: Iterable[bytes]) -> None:
        """Set the bits of packed addresses; their entries are written next."""
        self._set(self._parts[_SERVED][0], addresses)

    def add_keys(self, name: str, keys: Iterable[bytes]) -> list[bytes]:
        """Set the bits of keys that are written into a map next; most maps have no bits.

        Ports of frontends are noted, too. Return the keys that are certainly not in the map yet:
        their bit was not set.
        """
        new: list[bytes] = []
        if not any(name in names for names in self._parts):
            return new
        keys = list(keys)
        for names, (start, size) in self._parts.items():
            if name in names:
                new = self._set(start, keys, size)
        if name == _FRONTENDS:
            self._ports.note(keys)
        return new

    def _set(self, start: int, keys: Iterable[bytes], size: int = _ADDRESS) -> list[bytes]:
        """Set the bits of keys, by their first ``size`` bytes; return the keys that had none."""
        memory, index_of = self._memory, self.index_of
        new = []
        for key in keys:
            index = index_of(key[:size])
            at, bit = start + (index >> 3), 1 << (index & 7)
            if not memory[at] & bit:
                memory[at] |= bit
                new.append(key)
        return new

    def refill(self) -> None:
        """Set the bits of all entries, and clear the bits of other frontends and addresses.

        Bits of backends stay as long as the build: connections to a backend may outlive its entry,
        and a client that connects to it directly must not be mistaken for one of them.
        """
        for names, (start, size) in self._parts.items():
            stays = names == _BACKENDS
            bits = bytearray(self._memory[start : start + self._bytes] if stays else self._bytes)
            for name in names:
                keys = [key for key, _ in self._pinned.map(name).items()]
                if name == _FRONTENDS:
                    self._ports.note(keys)
                for key in keys:
                    index = self.index_of(key[:size])
                    bits[index >> 3] |= 1 << (index & 7)
            self._memory[start : start + self._bytes] = bytes(bits)

    def cover(self, networks: Iterable[Network]) -> None:
        """Make addresses within these networks destinations, too. All bits must be set before."""
        networks = list(networks)
        for of_family, at in self._networks.items():
            ours = [network for network in networks if family(network.address) == of_family]
            self._memory[at : at + 2 * _ADDRESS] = _around(ours) if ours else _NO_NETWORK

    def hide(self) -> None:
        """Hide all frontends and addresses: first packets to them pass, until :meth:`show`."""
        at = self._networks[4], self._networks[6], self._parts[_SERVED][0]
        sizes = 2 * _ADDRESS, 2 * _ADDRESS, self._bytes
        self._hidden = [
            (start, bytes(self._memory[start : start + size]))
            for start, size in zip(at, sizes, strict=True)
        ]
        for start, kept in self._hidden:
            nothing = _NO_NETWORK if len(kept) == len(_NO_NETWORK) else bytes(len(kept))
            self._memory[start : start + len(kept)] = nothing

    def show(self) -> None:
        """Undo :meth:`hide`; nothing may be written between the two."""
        for start, kept in self._hidden:
            self._memory[start : start + len(kept)] = kept
        self._hidden = []

    def index_of(self, destination: bytes) -> int:
        """Return the index of the bit of a packed address, or of one with port and protocol."""
        first, second, third, fourth = _WORDS.unpack_from(destination)
        mixed: int = (second << 32 | first) * self._high ^ (fourth << 32 | third)
        if len(destination) > _ADDRESS:
            port, protocol = _REST.unpack_from(destination, _ADDRESS)
            mixed ^= (protocol << 16 | port) * self._rest
        return (mixed * self._all & _M64) >> self._shift


def _around(networks: list[Network]) -> bytes:
    """Return network and mask, packed, of the smallest network that holds all of these."""
    first = int.from_bytes(networks[0].address, "big")
    bits = min(network.bits for network in networks)
    for network in networks:
        differing = first ^ int.from_bytes(network.address, "big")
        bits = min(bits, _ALL_BITS - differing.bit_length())
    mask = _M64 << 64 | _M64
    mask = mask >> (_ALL_BITS - bits) << (_ALL_BITS - bits)
    return (first & mask).to_bytes(_ADDRESS, "big") + mask.to_bytes(_ADDRESS, "big")
