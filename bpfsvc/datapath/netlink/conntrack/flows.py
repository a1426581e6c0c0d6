"""Flows that netfilter translates.

Flows with a translated destination are kube-proxy's connections and hostPorts. Flows with only a
translated source are masqueraded by a CNI. The kernel is asked for one of the two kinds (since
Linux 5.16; older kernels send all entries, and the other kind is skipped here).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bpfsvc.datapath.netlink.conntrack import messages
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.nlmsg import DUMP, REQUEST, attribute, attributes, dump

Fields = dict[int, memoryview]

_SOURCE_TRANSLATED, _DESTINATION_TRANSLATED = 1 << 4, 1 << 5
"""IPS_SRC_NAT, IPS_DST_NAT."""

_INFO_TCP, _INFO_STATE = 1, 1
"""Attributes within PROTOCOL_STATE."""

_TCP_OVER = frozenset({6, 7, 8})
"""LAST_ACK, TIME_WAIT and CLOSE (``enum tcp_conntrack``): the connection is over."""

_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")


def can_track() -> bool:
    """True if this kernel can track connections, even if there are none."""
    return _COUNT.exists()


def tracks() -> bool:
    """True if netfilter has connections here."""
    try:
        return int(_COUNT.read_text()) > 0
    except FileNotFoundError:
        return False


def open_connections() -> Iterator[TranslatedFlow]:
    """Yield kube-proxy's TCP connections that are not over; raise as `translated_flows`."""
    for fields in _entries(_DESTINATION_TRANSLATED):
        flow = _read(fields)
        if flow and flow.protocol == socket.IPPROTO_TCP and _tcp_state(fields) not in _TCP_OVER:
            yield flow


def translated_flows() -> Iterator[TranslatedFlow]:
    """Yield flows with a translated destination; ``OSError`` if the kernel cannot list them."""
    return filter(None, map(_read, _entries(_DESTINATION_TRANSLATED)))


def masqueraded_flows() -> Iterator[TranslatedFlow]:
    """Yield flows with only a translated source; raise as `translated_flows`."""
    for fields in _entries(_SOURCE_TRANSLATED):
        flow = _read(fields, _SOURCE_TRANSLATED)
        if flow and not _status(fields) & _DESTINATION_TRANSLATED:
            yield flow


def forgotten(flows: Sequence[TranslatedFlow]) -> Iterator[TranslatedFlow]:
    """Yield the flows without an entry in netfilter; ``OSError`` if netfilter cannot be asked."""
    if not tracks():
        yield from flows
        return
    requests = ((flow, messages.pack_tuple(messages.TUPLE_REPLY, flow.reverse())) for flow in flows)
    for flow, error, _ in messages.ask(messages.GET, REQUEST, requests):
        if error == errno.ENOENT:
            yield flow
        elif error:
            raise OSError(error, os.strerror(error))


def _entries(status: int) -> Iterator[Fields]:
    """Yield the attributes of each entry with these bits of status; on older kernels, of all.

    Where netfilter tracks nothing, netfilter is not asked: a request would load its modules.
    """
    if not tracks():
        return
    wanted = attribute(messages.STATUS, struct.pack("!I", status))
    with messages.connect() as netfilter:
        for body in dump(netfilter, messages.message(messages.GET, REQUEST | DUMP, wanted)):
            yield attributes(body[messages.FAMILY_BYTES :])


def _tcp_state(fields: Fields) -> int:
    """Return the state of a TCP connection, 0 if the kernel did not say it."""
    info = attributes(fields.get(messages.PROTOCOL_STATE, memoryview(b"")))
    tcp = attributes(info.get(_INFO_TCP, memoryview(b"")))
    return tcp[_INFO_STATE][0] if _INFO_STATE in tcp else 0


def _status(fields: Fields) -> int:
    return int.from_bytes(fields.get(messages.STATUS, b""), "big")


def _read(fields: Fields, status: int = _DESTINATION_TRANSLATED) -> TranslatedFlow | None:
    """Return the flow of one entry; None if it is not so translated, or has no ports.

    None for an entry of a conntrack zone, too: it is another program's, as a virtual switch's, and
    `forgotten` asks for entries without a zone.
    """
    if not _status(fields) & status or messages.TUPLE_REPLY not in fields:
        return None
    if messages.ZONE in fields:
        return None
    reply = messages.read_tuple(fields[messages.TUPLE_REPLY])
    return reply.reverse() if reply else None
