"""Addresses and networks in all the forms that the API has accepted over the years."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Section 1.3: leading zeros are decimal. None if it is not an address."""
    if "%" in text:
        return None
    try:
        return ipaddress.ip_address(_without_leading_zeros(text))
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def parse_network(text: str) -> Network | None:
    """Section 1.3: as addresses, ``/025`` being ``/25``. None if it is not a CIDR."""
    base, _, length = text.partition("/")
    if not re.fullmatch("[0-9]+", length) or parse_address(base) is None:
        return None
    try:
        return ipaddress.ip_network(f"{parse_address(base)}/{int(length)}", strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def known_address(text: str) -> Address:
    """Return an address of the case itself, not of an object: it is present and valid."""
    return ipaddress.ip_address(text)


def socket_text(address: Address, port: int) -> str:
    """Return ``ip:port``, the text by which endpoints are sorted; section 1.3: canonically."""
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def _without_leading_zeros(text: str) -> str:
    head, colon, dotted = text.rpartition(":")
    if "." not in dotted:
        return text
    return head + colon + re.sub(r"\b0+(?=[0-9])", "", dotted)
