"""Before everything is removed: new connections go to the next proxy, and the old ones end.

The programs stay, and translate the connections that they know until these end. Without frontends
they take no new connections, and netfilter's rules (kube-proxy's) get those.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from socket import IPPROTO_TCP, IPPROTO_UDP

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.base.texts import count_text
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.datapath.netlink.conntrack.flows import tracks
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.conntrack.reservations import release, reserve

_log = logging.getLogger("bpfsvc")

_LOOK_SECONDS = 1.0
_REPORT_SECONDS = 30.0
_UDP_SECONDS = 60.0
"""A UDP flow that lasts longer goes to the next proxy, which may choose another endpoint. Answers
that were under way at the beginning have arrived long before."""

_OPENING_SECONDS = 60
"""A flow without an answer for so long is no connection."""

_RESERVED_SECONDS = 86400
"""How long conntrack keeps our entry at most: as long as kube-proxy's silent connections."""

_Entry = tuple[bytes, tuple[int, ...]]
"""The key of an entry, and the fields of its value that ``_Drain`` picks."""


def drain(
    root: PinRoot, seconds: float, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Wait at most ``seconds`` until the connections of pinned programs have ended.

    Yields a line for each thing done. The caller holds the lock of ``root``.
    """
    try:
        pinned = Pinned(root.current)
    except NotLoaded:
        return
    try:
        yield from _Drain(pinned, pause).run(seconds)
    finally:
        pinned.close()


class _Drain:
    """The connections of one node, while they become fewer."""

    def __init__(self, pinned: Pinned, pause: Callable[[float], None]) -> None:
        self._pinned = pinned
        self._pause = pause
        self._gc = ConnectionGc(pinned, Lifetimes(), _LOOK_SECONDS)
        self._gc_program = GcProgram(pinned)
        self._tables = [pinned.map(name) for name in ("connections", "new_connections")]
        layout = pinned.layout.maps["connections"]
        self._key = layout.key.pick(*TranslatedFlow._fields, "hook")
        self._ingress = pinned.layout.constant("HOOK_INGRESS")
        self._certain = pinned.layout.constants.get("RESET_CERTAIN", 1)
        self._time_wait = pinned.layout.constants.get("TIME_WAIT_SECONDS", 60)
        self._state = layout.value.pick(
            "seen", "reply", "established", "fin_sent", "fin_received", "reset", "masquerade"
        )
        self._reserved: list[TranslatedFlow] = []

    def run(self, seconds: float) -> Iterator[str]:
        """Take no new connections, and wait until the old ones end; yield lines about it."""
        self._reserve()
        removed = self._remove_frontends()
        # Again, for connections that began meanwhile.
        self._reserve()
        yield f"removed {count_text(removed, 'frontend')}: new connections go to the next proxy"
        began = time.monotonic()
        reported, udp_left = began - _REPORT_SECONDS, True
        while live := self._count():
            now = time.monotonic()
            if now - began >= seconds:
                yield f"{count_text(live, 'connection')} had not ended after {seconds:g} s"
                break
            if now - reported >= _REPORT_SECONDS:
                yield f"waiting for {count_text(live, 'connection')} to end"
                reported = now
            if udp_left and now - began >= _UDP_SECONDS:
                self._remove_udp()
                udp_left = False
            self._pause(_LOOK_SECONDS)
            self._gc.sweep()
        else:
            yield "no connection is left"
        self._release()

    def _remove_frontends(self) -> int:
        """Remove all frontends; first those that refuse what no other frontend takes."""
        networks, frontends = self._pinned.map("service_networks"), self._pinned.map("frontends")
        networks.delete_many([key for key, _ in networks.items()])
        port = self._pinned.layout.maps["frontends"].key.pick("port", "protocol")
        keys = [key for key, _ in frontends.items()]
        frontends.delete_many([key for key in keys if not any(port.unpack(key))])
        frontends.delete_many([key for key in keys if any(port.unpack(key))])
        return len(keys)

    def _all(self, table: Map) -> Iterator[_Entry]:
        for block in table.blocks():
            for at, state in enumerate(self._state.iter_unpack(block.values)):
                yield block.key(at), state

    def _entries(self, table: Map) -> Iterator[_Entry]:
        """Yield each entry of a connection that is not over."""
        for key, state in self._all(table):
            seen, _, established, sent, received, reset, _ = state
            if reset & self._certain or (sent and received):
                continue
            if established or time.monotonic_ns() - seen < _OPENING_SECONDS * NS_PER_SECOND:
                yield key, state

    def _count(self) -> int:
        """Return the number of connections: each has one entry for requests at ingress.

        A connection of netfilter with a changed port has one at egress, without a masquerade.
        """
        return sum(
            not reply and (self._key.unpack(key)[5] == self._ingress or not masquerade)
            for table in self._tables
            for key, (_, reply, *_, masquerade) in self._entries(table)
        )

    def _remove_udp(self) -> None:
        for table in self._tables:
            keys = [
                key for key, _ in self._entries(table) if self._key.unpack(key)[4] == IPPROTO_UDP
            ]
            self._gc_program.remove(keys, force=True)

    def _reserve(self) -> None:
        """Reserve the ports of our masqueraded connections in conntrack.

        Also of connections that are over: as long as there is an entry, the programs take a packet
        to the port for an answer of the old connection.
        """
        if not tracks():
            return
        lasting = {flow for table in self._tables for flow in self._flows(self._entries(table))}
        ended = {flow for table in self._tables for flow in self._flows(self._all(table))} - lasting
        known = set(self._reserved)
        try:
            self._reserved += reserve(lasting - known, _RESERVED_SECONDS)
            self._reserved += reserve(ended - known, self._time_wait)
        except OSError as error:
            _log.warning(
                "masquerade ports in use cannot be reserved in conntrack: %s; a new connection may"
                " get the port of an old one",
                error.strerror,
            )

    def _flows(self, entries: Iterable[_Entry]) -> Iterator[TranslatedFlow]:
        """Yield connections as their backends see them, by the entries for replies."""
        for key, state in entries:
            backend, node, backend_port, port, protocol, hook = self._key.unpack(key)
            if state[1] and hook == self._ingress and protocol in (IPPROTO_TCP, IPPROTO_UDP):
                yield TranslatedFlow(node, backend, port, backend_port, protocol)

    def _release(self) -> None:
        try:
            release(self._reserved)
        except OSError as error:
            _log.warning(
                "reserved ports stay in conntrack for a day: %s (conntrack -D removes them)",
                error.strerror,
            )
