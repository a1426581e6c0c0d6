"""5-tuples that netfilter must not choose, because connections of ours have them on the wire.

Our programs masquerade behind netfilter's hooks, so its table does not show what they send. While
kube-proxy takes new connections and ours are going on, one of its could get the address and port
of one of ours. An entry of netfilter's own for each of ours makes it choose another port.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable

from bpfsvc.datapath.netlink import ctnetlink
from bpfsvc.datapath.netlink.attributes import attribute, nested
from bpfsvc.datapath.netlink.ctnetlink import TranslatedFlow

_REQUEST_ACK, _CREATE_ALONE = 0x5, 0x600
_TCP, _TCP_STATE, _ESTABLISHED = 1, 1, 3
_CONFIRMED = 0xE
"""IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED."""

_BUFFER = 1 << 16


def reserve(flows: Iterable[TranslatedFlow], seconds: int) -> list[TranslatedFlow]:
    """Make an entry for each flow, for so long; return those made. ``OSError`` if it cannot be.

    Where there is an entry already it stays as it is.
    """
    timeout = attribute(ctnetlink.TIMEOUT, struct.pack("!I", seconds))
    status = attribute(ctnetlink.STATUS, struct.pack("!I", _CONFIRMED))
    state = attribute(_TCP_STATE, bytes([_ESTABLISHED]))
    of_tcp = nested(ctnetlink.PROTOCOL_STATE, nested(_TCP, state))
    made = []
    with ctnetlink.connect() as netfilter:
        for flow in flows:
            body = _tuples(flow) + timeout + status
            if flow.protocol == socket.IPPROTO_TCP:
                body += of_tcp
            if _send(netfilter, ctnetlink.NEW, _CREATE_ALONE, flow, body, ignored=errno.EEXIST):
                made.append(flow)
    return made


def release(flows: Iterable[TranslatedFlow]) -> None:
    """Remove the entries that :func:`reserve` has made; ``OSError`` if it cannot be."""
    with ctnetlink.connect() as netfilter:
        for flow in flows:
            _send(netfilter, ctnetlink.DELETE, 0, flow, _tuples(flow), ignored=errno.ENOENT)


def _send(
    netfilter: socket.socket,
    kind: int,
    flags: int,
    flow: TranslatedFlow,
    body: bytes,
    *,
    ignored: int,
) -> bool:
    """Send one request; True if it was done, False if it failed with the error ``ignored``."""
    of_family = ctnetlink.address_family(flow)
    netfilter.send(ctnetlink.message(kind, _REQUEST_ACK | flags, body, of_family))
    (error,) = struct.unpack_from("=i", netfilter.recv(_BUFFER), ctnetlink.HEADER.size)
    if error and -error != ignored:
        raise OSError(-error, os.strerror(-error))
    return not error


def _tuples(flow: TranslatedFlow) -> bytes:
    original = ctnetlink.pack_tuple(ctnetlink.TUPLE_ORIGINAL, flow)
    return original + ctnetlink.pack_tuple(ctnetlink.TUPLE_REPLY, flow.reverse())
