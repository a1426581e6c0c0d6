"""5-tuples that netfilter must not choose, because connections of ours have them on the wire.

Our programs masquerade behind netfilter's hooks, so its table does not show what they send. While
kube-proxy takes new connections and ours are going on, a connection of kube-proxy's could get the
address and port of a connection of ours. An entry of netfilter's own for each of ours makes
netfilter choose another port.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable

from bpfsvc.datapath.netlink.conntrack import messages
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.nlmsg import ACK, CREATE_NEW, REQUEST, attribute, nested

_TCP, _TCP_STATE, _ESTABLISHED = 1, 1, 3
_CONFIRMED = 0xE
"""IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED."""


def reserve(flows: Iterable[TranslatedFlow], seconds: int) -> list[TranslatedFlow]:
    """Make an entry for each flow, for some seconds; return the flows that got an entry.

    An entry that is there already stays as it is. Raises ``OSError`` if netfilter refuses.
    """
    timeout = attribute(messages.TIMEOUT, struct.pack("!I", seconds))
    status = attribute(messages.STATUS, struct.pack("!I", _CONFIRMED))
    state = attribute(_TCP_STATE, bytes([_ESTABLISHED]))
    of_tcp = nested(messages.PROTOCOL_STATE, nested(_TCP, state))
    requests = (
        (
            flow,
            _tuples(flow)
            + timeout
            + status
            + (of_tcp if flow.protocol == socket.IPPROTO_TCP else b""),
        )
        for flow in flows
    )
    return _send(messages.NEW, CREATE_NEW, requests, ignored=errno.EEXIST)


def release(flows: Iterable[TranslatedFlow]) -> None:
    """Remove the entries that :func:`reserve` has made; ``OSError`` if netfilter refuses."""
    requests = ((flow, _tuples(flow)) for flow in flows)
    _send(messages.DELETE, 0, requests, ignored=errno.ENOENT)


def _send(
    kind: int, flags: int, requests: Iterable[tuple[TranslatedFlow, bytes]], *, ignored: int
) -> list[TranslatedFlow]:
    """Send requests; return the flows that succeeded; leave out those that got ``ignored``."""
    done = []
    for flow, error, _ in messages.ask(kind, REQUEST | ACK | flags, requests):
        if error not in (0, ignored):
            raise OSError(error, os.strerror(error))
        if not error:
            done.append(flow)
    return done


def _tuples(flow: TranslatedFlow) -> bytes:
    original = messages.pack_tuple(messages.TUPLE_ORIGINAL, flow)
    return original + messages.pack_tuple(messages.TUPLE_REPLY, flow.reverse())
