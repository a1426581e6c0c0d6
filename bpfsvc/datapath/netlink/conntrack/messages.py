"""Messages of ctnetlink: entries of netfilter's connection table, by their 5-tuples.

The numbers stand in ``linux/netfilter/nfnetlink_conntrack.h``.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from bpfsvc.base.address import V4_PREFIX, family
from bpfsvc.datapath.netlink.nlmsg import (
    attribute,
    attributes,
    nested,
    pack_request,
    receive,
)

NEW, GET, DELETE = 1 << 8, 1 << 8 | 1, 1 << 8 | 2
"""Kinds of messages: NFNL_SUBSYS_CTNETLINK with IPCTNL_MSG_CT_NEW, _GET, _DELETE."""

FAMILY_BYTES = 4
"""``struct nfgenmsg``, with which every message begins."""

TUPLE_ORIGINAL, TUPLE_REPLY, STATUS, PROTOCOL_STATE, TIMEOUT, ZONE = 1, 2, 3, 4, 7, 18
"""Attributes of an entry."""

_NETLINK_NETFILTER = 12
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_ADDRESSES = {4: (1, 2), 6: (3, 4)}
"""Attributes of source and destination, by family."""

_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3

_AT_ONCE = 32
"""Requests at a time: an answer takes 4 kB of memory, and all must fit the receive buffer."""


class TranslatedFlow(NamedTuple):
    """A flow after netfilter's translation, client or node to backend.

    Ports are in network order. ``struct flow`` has the same fields in the same order.
    """

    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    protocol: int

    def reverse(self) -> TranslatedFlow:
        """Return the flow of the answers."""
        return TranslatedFlow(
            self.destination, self.source, self.destination_port, self.source_port, self.protocol
        )


def connect() -> socket.socket:
    """Return a netlink socket to netfilter of this network namespace."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)


def message(
    kind: int, flags: int, body: bytes, of_family: int = socket.AF_UNSPEC, number: int = 1
) -> bytes:
    """Return a request; ``body``: attributes. The answer has the same ``number``."""
    body = struct.pack("=BBH", of_family, 0, 0) + body
    return pack_request(kind, flags, body, number)


def ask(
    kind: int, flags: int, requests: Iterable[tuple[TranslatedFlow, bytes]]
) -> Iterator[tuple[TranslatedFlow, int, memoryview]]:
    """Send a request about each flow, with attributes.

    Yields the flow, the error (``errno``, 0 without one) and the body of each answer.
    """
    rest = iter(requests)
    with connect() as netfilter:
        while batch := list(islice(rest, _AT_ONCE)):
            netfilter.send(
                b"".join(
                    message(kind, flags, body, address_family(flow), number)
                    for number, (flow, body) in enumerate(batch)
                )
            )
            answered = 0
            while answered < len(batch):
                for answer in receive(netfilter):
                    answered += 1
                    yield batch[answer.number][0], answer.error, answer.body


def address_family(flow: TranslatedFlow) -> int:
    """Return AF_INET or AF_INET6."""
    return socket.AF_INET if family(flow.source) == 4 else socket.AF_INET6


def pack_tuple(kind: int, flow: TranslatedFlow) -> bytes:
    """Return a flow as TUPLE_ORIGINAL or TUPLE_REPLY."""
    of_family = family(flow.source)
    skip = len(V4_PREFIX) if of_family == 4 else 0
    source, destination = _ADDRESSES[of_family]
    return nested(
        kind,
        nested(
            _TUPLE_IP,
            attribute(source, flow.source[skip:]),
            attribute(destination, flow.destination[skip:]),
        ),
        nested(
            _TUPLE_PROTOCOL,
            attribute(_NUMBER, bytes([flow.protocol])),
            attribute(_SOURCE_PORT, struct.pack("=H", flow.source_port)),
            attribute(_DESTINATION_PORT, struct.pack("=H", flow.destination_port)),
        ),
    )


def read_tuple(data: memoryview) -> TranslatedFlow | None:
    """Return the flow of such an attribute; None if it has no ports, as ICMP, or is damaged."""
    parts = attributes(data)
    try:
        addresses, protocol = attributes(parts[_TUPLE_IP]), attributes(parts[_TUPLE_PROTOCOL])
        of_family = 4 if _ADDRESSES[4][0] in addresses else 6
        prefix = V4_PREFIX if of_family == 4 else b""
        source, destination = (prefix + bytes(addresses[kind]) for kind in _ADDRESSES[of_family])
        source_port, destination_port = protocol[_SOURCE_PORT], protocol[_DESTINATION_PORT]
        number = protocol[_NUMBER][0]
    except (KeyError, IndexError):
        return None
    if {len(source), len(destination)} != {16} or {len(source_port), len(destination_port)} != {2}:
        return None
    return TranslatedFlow(
        source,
        destination,
        int.from_bytes(source_port, sys.byteorder),
        int.from_bytes(destination_port, sys.byteorder),
        number,
    )
