"""Connections from outside to pods that leave the fast path: netfilter is told of them first.

It has seen none of their packets. If it met an answer of a pod in the middle of such a connection,
it would take that for the beginning of one of the pod's own, and the rules by which CNIs masquerade
what pods send to the world would give it another source. With an entry in its table it lets them
pass as they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from socket import IPPROTO_TCP

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.conntrack.entries import make_liberal
from bpfsvc.datapath.netlink.conntrack.flows import can_track
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.conntrack.reservations import reserve

_log = logging.getLogger("bpfsvc")

_TCP_SECONDS, _UDP_SECONDS = 86400, 120
"""How long netfilter keeps such an entry, if it sees no packet of the connection: what it grants an
established one, and a flow of datagrams both ways."""


def hand_over(pinned: Pinned) -> None:
    """Make an entry of netfilter's for each connection from outside that is on the fast path."""
    if not can_track():
        return
    began = time.monotonic()
    flows = set(_flows(pinned))
    try:
        tcp = {flow for flow in flows if flow.protocol == IPPROTO_TCP}
        reserve(tcp, _TCP_SECONDS)
        reserve(flows - tcp, _UDP_SECONDS)
        # It has missed what came before.
        for _ in make_liberal(tcp):
            pass
    except OSError as error:
        _log.warning(
            "netfilter is not told of connections from outside: %s; those that leave the fast path"
            " may break",
            error.strerror,
        )
        return
    if flows:
        _log.info(
            "netfilter knows of %d connections from outside, told in %.1f s",
            len(flows),
            time.monotonic() - began,
        )


def _flows(pinned: Pinned) -> Iterator[TranslatedFlow]:
    """Yield what each of them is between the hooks, client to backend."""
    layout = pinned.layout.maps["connections"]
    ingress = pinned.layout.constant("HOOK_INGRESS")
    hook = layout.key.pick("hook")
    routed = (f"after.{name}" for name in TranslatedFlow._fields)
    value = layout.value.pick(*routed, "reply", "outside")
    # An entry moves from the first to the second, never back.
    for name in ("new_connections", "connections"):
        for block in pinned.map(name).blocks():
            for at, (*flow, reply, outside) in enumerate(value.iter_unpack(block.values)):
                if outside and not reply and hook.unpack(block.key(at)) == (ingress,):
                    yield TranslatedFlow(*flow)
