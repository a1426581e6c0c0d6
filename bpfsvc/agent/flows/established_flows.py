"""Which connections may take the fast path after their handshake (``--fast-path established``).

The programs name candidates in the map ``established_flows``, and conntrack is asked about them. It
must have the connection established, and nothing may change its packets. As conntrack will miss
most packets of the connection, it is set to be liberal. (``bpf/maps/established_flows.h`` has the
whole way.)

The programs see by themselves when netfilter no longer lets a flow pass, so nothing is wrong while
no agent runs. A thread of its own does this: no change of an endpoint waits for it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError, MapFull
from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.conntrack.entries import (
    look_up,
    make_liberal,
    silent_seconds,
)
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow

_LOOK_SECONDS = 1.0
"""How often to look for candidates."""

CHECK_SECONDS = 30.0
"""How often to check connections that are fast: conntrack may drop one after 300 s if it has not
seen the acknowledgement of its data."""

REFUSED_SECONDS = 5.0
"""A refused connection may become a candidate again after so long."""

_SHARE = 20
"""A long look is followed by a pause of so many times its duration."""

_log = logging.getLogger("bpfsvc")


class _Packets(NamedTuple):
    """Numbers that the programs count up while a connection has packets."""

    asked: int
    passed: int


class ListedPorts:
    """The map ``established_ports``: programs look up a flow only if the byte of its ports is set.

    A byte is kept for one look more than its flow, because flows come and go during a look.
    """

    def __init__(self, pinned: Pinned) -> None:
        self._map = pinned.map("established_ports")
        self._before: set[int] = set()
        self._written: set[int] | None = None

    def write(self, flows: Iterable[TranslatedFlow]) -> None:
        """List the ports of ``flows``, and of those before."""
        now = {socket.ntohs(flow.source_port ^ flow.destination_port) for flow in flows}
        wanted, self._before = now | self._before, now
        if wanted == self._written:
            return
        value = bytearray(self._map.value_size)
        for index in wanted:
            value[index] = 1
        self._map.update(bytes(4), bytes(value))
        self._written = wanted


class EstablishedFlows:
    """Decides on candidates, and removes entries of connections that are over or silent."""

    def __init__(
        self,
        pinned: Pinned,
        report: Callable[[str | None], object],
        wanted: Callable[[], bool] = lambda: True,
        check_seconds: float = CHECK_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
    ) -> None:
        """``report(reason)`` gets why conntrack cannot be asked; None: it can.

        ``wanted()``: False while the node has another level of the fast path.
        """
        self._wanted = wanted
        self._report = report
        self._refused_seconds = refused_seconds
        self._map = pinned.map("established_flows")
        self._ports = ListedPorts(pinned)
        layout = pinned.layout.maps["established_flows"]
        self._key = layout.key.pick(*TranslatedFlow._fields)
        self._value = layout.value.pick("state", "asked", "passed")
        constant = pinned.layout.constant
        self._candidate = constant("ESTABLISHED_CANDIDATE")
        self._fast = constant("ESTABLISHED_FAST")
        self._refused = constant("ESTABLISHED_REFUSED")
        self._refused_since: dict[bytes, float] = {}
        self._packets: dict[bytes, _Packets] = {}
        self._check_seconds = check_seconds
        self._check_at = time.monotonic() + check_seconds
        self._failure = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="established flows", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; fast connections stay fast."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = _LOOK_SECONDS
        while not self._stop.wait(pause):
            began = time.monotonic()
            failure = ""
            try:
                if self._wanted():
                    self.look()
            except (BpfsvcError, OSError) as error:
                failure = (
                    f"no more connections take the fast path: conntrack cannot be read: {error}"
                )
            if failure != self._failure:
                self._failure = failure
                self._report(failure or None)
                if failure:
                    _log.warning("%s", failure)
            pause = max(_LOOK_SECONDS, _SHARE * (time.monotonic() - began))

    def look(self) -> None:
        """Decide on the candidates, and check the fast connections if that is due."""
        candidates: list[bytes] = []
        fast: dict[bytes, _Packets] = {}
        refused: set[bytes] = set()
        for key, raw in self._map.items():
            state, asked, passed = self._value.unpack(raw)
            if state == self._candidate:
                candidates.append(key)
            elif state == self._fast:
                fast[key] = _Packets(asked, passed)
            else:
                refused.add(key)
        # Before conntrack is asked: the end of a candidate must remove it.
        self._ports.write(self._flow(key) for key in (*candidates, *fast))
        self._forget_refused(refused)
        self._decide(candidates)
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + self._check_seconds
            self._check(fast)

    def _flow(self, key: bytes) -> TranslatedFlow:
        return TranslatedFlow(*self._key.unpack(key))

    def _forget_refused(self, keys: set[bytes]) -> None:
        now = time.monotonic()
        since = {key: self._refused_since.get(key, now) for key in keys}
        over = {key for key, at in since.items() if now - at >= self._refused_seconds}
        self._map.delete_many(list(over))
        self._refused_since = {key: at for key, at in since.items() if key not in over}

    def _decide(self, candidates: Iterable[bytes]) -> None:
        keys = {self._flow(key): key for key in candidates}
        if not keys:
            return
        established = {flow for flow, entry in look_up(keys) if entry and entry.is_established}
        tcp = {flow for flow in established if flow.protocol == socket.IPPROTO_TCP}
        passing = established - tcp | set(make_liberal(tcp))
        for flow, key in keys.items():
            if flow in passing:
                self._make_fast(key, flow)
            else:
                self._set_state(key, self._refused)

    def _make_fast(self, key: bytes, flow: TranslatedFlow) -> None:
        """Make both directions fast, unless the connection has ended meanwhile."""
        if not self._set_state(key, self._fast):
            return
        reverse = self._key.pack(*flow.reverse())
        try:
            self._map.update(reverse, self._value.pack(self._fast, 0, 0))
        except MapFull:
            self._map.delete(key)

    def _set_state(self, key: bytes, state: int) -> bool:
        """Set the state of an entry; return False if there is no such entry any more."""
        return self._map.update(key, self._value.pack(state, 0, 0), syscall.EXIST)

    def _check(self, fast: dict[bytes, _Packets]) -> None:
        """Remove connections that are over; and silent ones, so that there is room for others."""
        pairs: dict[TranslatedFlow, tuple[bytes, bytes]] = {}
        for key in fast:
            flow = self._flow(key)
            if flow.reverse() not in pairs:
                pairs[flow] = key, self._key.pack(*flow.reverse())
        seconds = silent_seconds()
        over: set[bytes] = set()
        strict: list[TranslatedFlow] = []
        short: list[TranslatedFlow] = []
        for flow, entry in look_up(pairs):
            both = pairs[flow]
            if entry is None or not entry.is_established:
                over.update(both)
                continue
            if (
                flow.protocol == socket.IPPROTO_TCP
                and seconds
                and entry.seconds <= seconds.unacknowledged < seconds.established
            ):
                short.append(flow)
            elif flow.protocol == socket.IPPROTO_TCP and not entry.is_liberal:
                strict.append(flow)
            if not all(key in fast for key in both) or all(
                fast[key] == self._packets.get(key) for key in both
            ):
                over.update(both)
        # Conntrack goes on missing packets, and must keep such an entry as long as others.
        for flows, keep in ((strict, None), (short, seconds and seconds.established)):
            list(make_liberal(flows, keep))
        self._map.delete_many(list(over))
        self._packets = {key: packets for key, packets in fast.items() if key not in over}


def forget_all(pinned: Pinned) -> None:
    """Remove all entries: they may be out of date."""
    flows = pinned.map("established_flows")
    flows.delete_many([key for key, _ in flows.items()])
