"""Entries of netfilter's connection table, each asked for by a flow of either direction.

Conntrack follows the sequence numbers of TCP: a packet that does not fit the packets before is
invalid. Where conntrack does not see all packets of a connection, the entry must be made *liberal*:
then conntrack takes every packet. nf_tables does the same for connections in a flowtable. Two
memories of the entry grow old at that moment and are erased: up to which number data was
acknowledged (conntrack judges resets by it), and that some data was not acknowledged (conntrack
would keep a silent connection for minutes only). See ``net/netfilter/nf_conntrack_proto_tcp.c`` and
``nft_flow_offload.c``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import sysctl
from bpfsvc.datapath.netlink.conntrack import messages
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.nlmsg import ACK, REQUEST, attribute, attributes, nested

_HELPER = 5
"""CTA_HELP: something reads what the connection carries."""

_TCP, _TCP_STATE, _FLAGS_ORIGINAL, _FLAGS_REPLY = 1, 1, 4, 5
"""Attributes within PROTOCOL_STATE."""

_TCP_ESTABLISHED = 3
_SEEN_REPLY, _ASSURED = 1 << 1, 1 << 2
_NOT_AS_IT_IS = sum(1 << bit for bit in (4, 5, 6, 9, 12, 14, 15))
"""Source, destination or sequence numbers are translated, or the entry is dying, clashed with
another entry, or is in a flowtable (``enum ip_conntrack_status``)."""

_LIBERAL, _UNACKNOWLEDGED, _ACKNOWLEDGED = 1 << 3, 1 << 4, 1 << 5
_MASK = _LIBERAL | _UNACKNOWLEDGED | _ACKNOWLEDGED
"""IP_CT_TCP_FLAG_BE_LIBERAL, _DATA_UNACKNOWLEDGED, _MAXACK_SET."""


class Entry(NamedTuple):
    """One connection, as netfilter has it.

    * ``original``, ``reply``: the flows; None if the connection has no ports.
    * ``status``: bits of ``enum ip_conntrack_status``. ``tcp_state``: 0 of other protocols.
    * ``tcp_flags``: of both directions. ``helper``: True if a conntrack helper reads the data.
    * ``zone``: True if the entry is another program's, such as a virtual switch's.
    * ``seconds``: how long the entry is kept without a packet.
    """

    original: TranslatedFlow | None
    reply: TranslatedFlow | None
    status: int
    tcp_state: int
    tcp_flags: tuple[int, int]
    helper: bool
    zone: bool
    seconds: int

    @property
    def is_established(self) -> bool:
        """True if the connection is established, and packets pass netfilter unchanged."""
        if not self.original or not self.reply or self.original.reverse() != self.reply:
            return False
        if self.helper or self.zone or self.status & _NOT_AS_IT_IS:
            return False
        if self.original.protocol == socket.IPPROTO_TCP and self.tcp_state != _TCP_ESTABLISHED:
            return False
        return self.status & (_SEEN_REPLY | _ASSURED) == _SEEN_REPLY | _ASSURED

    @property
    def is_liberal(self) -> bool:
        """True if the entry is as :func:`make_liberal` leaves it."""
        return all(flags & _MASK == _LIBERAL for flags in self.tcp_flags)


def look_up(flows: Iterable[TranslatedFlow]) -> Iterator[tuple[TranslatedFlow, Entry | None]]:
    """Yield each flow with its entry, None without one; ``OSError`` if netfilter gives none."""
    requests = ((flow, messages.pack_tuple(messages.TUPLE_ORIGINAL, flow)) for flow in flows)
    for flow, error, body in messages.ask(messages.GET, REQUEST, requests):
        if error not in (0, errno.ENOENT):
            raise OSError(error, os.strerror(error))
        yield flow, None if error else _read_entry(body)


def make_liberal(
    flows: Iterable[TranslatedFlow], seconds: int | None = None
) -> Iterator[TranslatedFlow]:
    """Let conntrack miss packets of TCP flows; yield the flows for which this was done.

    ``seconds``: how long to keep the entries without a packet; None: unchanged. Raises ``OSError``
    if netfilter cannot be asked.
    """
    flags = struct.pack("=BB", _LIBERAL, _MASK)
    of_tcp = [attribute(kind, flags) for kind in (_FLAGS_ORIGINAL, _FLAGS_REPLY)]
    body = nested(messages.PROTOCOL_STATE, nested(_TCP, *of_tcp))
    if seconds is not None:
        body += attribute(messages.TIMEOUT, struct.pack("!I", seconds))
    requests = ((flow, messages.pack_tuple(messages.TUPLE_ORIGINAL, flow) + body) for flow in flows)
    for flow, error, _ in messages.ask(messages.NEW, REQUEST | ACK, requests):
        if not error:
            yield flow


class SilentSeconds(NamedTuple):
    """How long netfilter keeps a silent TCP connection, and one with data not acknowledged."""

    established: int
    unacknowledged: int


def silent_seconds() -> SilentSeconds | None:
    """Return the settings of this network namespace; None if they are not known."""
    try:
        return SilentSeconds(
            *(
                int(sysctl.read(f"net.netfilter.nf_conntrack_tcp_timeout_{name}"))
                for name in SilentSeconds._fields
            )
        )
    except (KernelError, ValueError):
        return None


def _read_entry(body: memoryview) -> Entry:
    fields = attributes(body[messages.FAMILY_BYTES :])
    info = attributes(fields.get(messages.PROTOCOL_STATE, memoryview(b"")))
    tcp = attributes(info.get(_TCP, memoryview(b"")))
    return Entry(
        original=messages.read_tuple(fields[messages.TUPLE_ORIGINAL]),
        reply=messages.read_tuple(fields[messages.TUPLE_REPLY]),
        status=int.from_bytes(fields.get(messages.STATUS, b""), "big"),
        tcp_state=tcp[_TCP_STATE][0] if _TCP_STATE in tcp else 0,
        tcp_flags=(_flags(tcp, _FLAGS_ORIGINAL), _flags(tcp, _FLAGS_REPLY)),
        helper=_HELPER in fields,
        zone=messages.ZONE in fields,
        seconds=int.from_bytes(fields.get(messages.TIMEOUT, b""), "big"),
    )


def _flags(tcp: dict[int, memoryview], kind: int) -> int:
    return tcp[kind][0] if kind in tcp else 0
