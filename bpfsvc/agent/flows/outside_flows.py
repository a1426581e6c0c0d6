"""Outside connections are added to conntrack before they leave the fast path.

Conntrack has seen no packet of such a connection. An answer of a pod in the middle of it would look
like the beginning of a connection of the pod, and the rules by which CNIs masquerade what pods send
to the world would give the answer another source. With an entry in conntrack, the answers pass
unchanged.
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
"""How long conntrack keeps such an entry without a packet: by default as long as an established TCP
connection, and a UDP flow with answers."""


def hand_over(pinned: Pinned) -> None:
    """Add each outside connection that is on the fast path to conntrack."""
    if not can_track():
        return
    began = time.monotonic()
    flows = set(_flows(pinned))
    try:
        tcp = {flow for flow in flows if flow.protocol == IPPROTO_TCP}
        reserve(tcp, _TCP_SECONDS)
        reserve(flows - tcp, _UDP_SECONDS)
        # Conntrack has missed the packets before.
        for _ in make_liberal(tcp):
            pass
    except OSError as error:
        _log.warning(
            "external connections cannot be added to conntrack: %s; connections that leave the fast"
            " path now may break, and clients have to connect again",
            error.strerror,
        )
        return
    if flows:
        _log.info(
            "added %d external connections to conntrack in %.1f s",
            len(flows),
            time.monotonic() - began,
        )


def _flows(pinned: Pinned) -> Iterator[TranslatedFlow]:
    """Yield each outside connection as it is between the hooks, from client to backend."""
    layout = pinned.layout.maps["connections"]
    ingress = pinned.layout.constant("HOOK_INGRESS")
    hook = layout.key.pick("hook")
    routed = (f"after.{name}" for name in TranslatedFlow._fields)
    value = layout.value.pick(*routed, "reply", "outside")
    # An entry moves from the first table to the second, never back.
    for name in ("new_connections", "connections"):
        for block in pinned.map(name).blocks():
            for at, (*flow, reply, outside) in enumerate(value.iter_unpack(block.values)):
                if outside and not reply and hook.unpack(block.key(at)) == (ingress,):
                    yield TranslatedFlow(*flow)
