"""Networks of packed addresses: how long, and what is in them."""

from __future__ import annotations

from bpfsvc.address import family, unpack
from bpfsvc.rows import Network

ALL_BITS = 128
"""The length of a network of one address."""


def bits_of(mask: bytes) -> int:
    """Count the bits of a packed mask."""
    return int.from_bytes(mask, "big").bit_count()


def contains(network: Network, address: bytes) -> bool:
    """Whether an address lies in a network."""
    rest = ALL_BITS - network.bits
    return int.from_bytes(network.address, "big") >> rest == int.from_bytes(address, "big") >> rest


def network_text(network: Network) -> str:
    """Give ``10.0.0.0/8``, as people write it."""
    return f"{unpack(network.address)}/{network.bits - (96 if family(network.address) == 4 else 0)}"
