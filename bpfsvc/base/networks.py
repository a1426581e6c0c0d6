"""Networks of packed addresses: their length, and whether an address is in one."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.base.address import family, unpack

ALL_BITS = 128
"""The length of a network of one address."""


class Network(NamedTuple):
    """The addresses that share the first ``bits`` of 128, IPv4 in v4-mapped form."""

    address: bytes
    bits: int


def bits_of(mask: bytes) -> int:
    """Return the number of bits of a packed mask."""
    return int.from_bytes(mask, "big").bit_count()


def contains(network: Network, address: bytes) -> bool:
    """True if the address is in the network."""
    rest = ALL_BITS - network.bits
    return int.from_bytes(network.address, "big") >> rest == int.from_bytes(address, "big") >> rest


def network_text(network: Network) -> str:
    """Return the text of a network: ``10.0.0.0/8``."""
    return f"{unpack(network.address)}/{network.bits - (96 if family(network.address) == 4 else 0)}"
