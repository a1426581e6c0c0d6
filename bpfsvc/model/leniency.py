"""Addresses as the API has let them in over the years.

Objects older than strict validation may hold leading zeros. They are decimal (``172.30.0.041`` is
``172.30.0.41``, ``/025`` is ``/25``), as kube-proxy reads them; C libraries refuse them or take
them for octal.
"""

from __future__ import annotations

import re

from bpfsvc.address import pack, pack_network

_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


def pack_lenient(text: str) -> bytes:
    """Pack an address; ``ValueError`` for what is none."""
    try:
        return pack(text)
    except ValueError:
        return pack(_decimal(text))


def pack_network_lenient(text: str) -> tuple[bytes, bytes]:
    """Pack a CIDR, surrounding blanks allowed, into (network, mask); ``ValueError`` otherwise."""
    address, slash, length = text.strip().partition("/")
    if not (slash and length.isascii() and length.isdigit()):
        raise ValueError(f"{text!r} is not a CIDR")
    return pack_network(f"{_decimal(address)}/{int(length)}")


def _decimal(text: str) -> str:
    """Drop leading zeros from the dotted part of an address."""
    head, colon, dotted = text.rpartition(":")
    return head + colon + (_LEADING_ZEROS.sub("", dotted) if "." in dotted else dotted)
