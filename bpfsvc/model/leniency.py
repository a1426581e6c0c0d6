"""Addresses in every form that the API has accepted over the years.

Objects older than strict validation may have leading zeros. They are decimal (``172.30.0.041`` is
``172.30.0.41``, ``/025`` is ``/25``), as kube-proxy reads them; C libraries refuse them or read
them as octal.
"""

from __future__ import annotations

import re

from bpfsvc.base.address import pack, pack_network

_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


def pack_lenient(text: str) -> bytes:
    """Return a packed address; ``ValueError`` for an invalid one."""
    try:
        return pack(text)
    except ValueError:
        return pack(_decimal(text))


def pack_network_lenient(text: str) -> tuple[bytes, bytes]:
    """Return a CIDR as (network, mask), blanks around it allowed; ``ValueError`` otherwise."""
    address, slash, length = text.strip().partition("/")
    if not (slash and length.isascii() and length.isdigit()):
        raise ValueError(f"{text!r} is not a CIDR")
    return pack_network(f"{_decimal(address)}/{int(length)}")


def _decimal(text: str) -> str:
    """Return the address without leading zeros in its dotted part."""
    head, colon, dotted = text.rpartition(":")
    return head + colon + (_LEADING_ZEROS.sub("", dotted) if "." in dotted else dotted)
