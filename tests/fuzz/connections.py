"""A model of connections: what netfilter's conntrack would know of each, and docs/architecture.md.

It shares no code with the programs. Where a time is measured to about a second, the model says
that it does not know; the player then asks the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from bpfsvc.base.address import endpoint_text
from tests.fuzz.frames import (
    ACK,
    FIN,
    PSH,
    RST,
    SCTP,
    SCTP_ABORT,
    SCTP_INIT,
    SYN,
    TCP,
    UDP,
    URG,
    End,
    Segment,
)

SECOND = 1_000_000_000
CLIENT, SERVER = 0, 1
"""Who sends a packet."""

ESTABLISHED, HALF_CLOSED, CLOSED, HALF_OPEN = 86400, 3600, 10, 60
UDP_SECONDS = 120
"""Seconds that connections are kept, as ``tests/packets/node.py`` sets them; SCTP as UDP."""
CROWDED_CLOSED, CROWDED_HALF_OPEN = 2, 5

STREAM = 2 * SECOND
"""A server that goes on for so long has a UDP connection established by itself."""

HANDSHAKE = SECOND // 2
"""After this time a client that answers has completed its handshake, or gone on after an answer."""

AGAIN = 2 * SECOND
"""Within this time a client may repeat a SYN after it has reset what was not established."""

INEXACT = 2 * SECOND
"""How much older than the last packet the noted time may be."""

LONGEST_SEGMENT = 1 << 19
USUAL_PROGRESS = 1 << 20


@dataclass(slots=True)
class Peer:
    """One side of a TCP connection, by the packets that it has sent.

    * ``next``: the sequence number of its next byte.
    * ``acknowledged`` and ``window``: what its last packet said of the other side; None: nothing.
    * ``copied``: since then the entries were copied without these numbers.
    """

    next: int
    acknowledged: int | None = None
    window: int = 0
    copied: bool = False
    shift: int = 14
    fin: bool = False
    last_ns: int = 0


@dataclass(slots=True, repr=False)
class Connection:
    """One flow of a client to a frontend.

    * ``routed``: the client between the hooks. ``seen``: as the backend sees it.
    * ``reset``: by a number that ends the connection; ``given_up``: by the client, before it was
      established. ``doubted``: by one that may end it.
    * ``port_lost``: another connection has taken the port that the backend saw, or the backend has
      opened one to it, or no port was free. The client's next packet gets another port. In ``seen``
      the port is 0 then.
    * ``unsure``: the model does not know whether the entry is still there.
    """

    protocol: int
    client: End
    frontend: End
    backend: End
    routed: End
    seen: End
    begun_ns: int
    peers: tuple[Peer, Peer]
    replied: bool = False
    established: bool = False
    reset: bool = False
    given_up: bool = False
    doubted: bool = False
    port_lost: bool = False
    unsure: bool = False
    unsure_state: bool = False

    def __repr__(self) -> str:
        """Name its ends and its state, for the text of a difference."""
        ends = (self.client, self.frontend, self.routed, self.seen, self.backend)
        states = ("replied", "established", "reset", "doubted", "port_lost", "unsure")
        words = [name for name in (*states, "unsure_state") if getattr(self, name)]
        words += [f"FIN of {('client', 'server')[at]}" for at in (0, 1) if self.peers[at].fin]
        way = " > ".join(endpoint_text(*end) for end in ends)
        return f"Connection({self.protocol} {way}: {', '.join(words) or 'new'})"

    @property
    def closed(self) -> bool:
        """True if both sides have closed it, or a reset has."""
        return self.reset or (self.peers[0].fin and self.peers[1].fin)

    @property
    def masqueraded(self) -> bool:
        """True if the backend sees an address of the node in place of the client's."""
        return self.seen[0] != self.client[0]

    @property
    def is_certain(self) -> bool:
        """True if the model knows its entries, and their state."""
        return not (self.unsure or self.unsure_state)

    @property
    def is_open(self) -> bool:
        """True if the model knows that neither side nor a reset has ended it."""
        return self.is_certain and not self.closed

    def lose_port(self) -> None:
        """Take note that its port on the wire is another connection's."""
        self.port_lost = True
        self.seen = self.seen[0], 0

    def last_ns(self) -> int:
        """Return the time of the last packet."""
        return max(self.peers[0].last_ns, self.peers[1].last_ns)

    def may_yield(self, now: int) -> bool:
        """Return whether another connection may take its port, if no other is free."""
        if self.established:
            return False
        waits = self.protocol == UDP and not self.replied
        if not waits and now - self.begun_ns > HANDSHAKE:
            return True
        return now - self.last_ns() > CROWDED_HALF_OPEN * SECOND

    def keeps_port(self, now: int) -> bool:
        """Return whether no other connection may have its 5-tuple."""
        return self.is_open and not self.port_lost and not self.may_yield(now)

    def lifetime(self, crowded: bool = False) -> int:
        """Return after how many ns of silence it is over; ``crowded``: in a table nearly full."""
        if self.closed:
            return (CROWDED_CLOSED if crowded else CLOSED) * SECOND
        if self.protocol == TCP and self.doubted:
            return CLOSED * SECOND
        if not self.established:
            return (CROWDED_HALF_OPEN if crowded else HALF_OPEN) * SECOND
        if self.protocol != TCP:
            return UDP_SECONDS * SECOND
        if self.peers[0].fin or self.peers[1].fin:
            return HALF_CLOSED * SECOND
        return ESTABLISHED * SECOND

    def passed(self, sender: int, segment: Segment, now: int) -> None:
        """Take note of a packet that has been translated."""
        me, other = self.peers[sender], self.peers[1 - sender]
        # Netfilter does not renew an entry by a SYN that is sent again (conntrack_tcp_unreplied).
        if not (self.peers[CLIENT].last_ns and self._begins_again(segment)):
            me.last_ns = now
        if self.protocol != TCP:
            goes_on = self.protocol == UDP and now - self.begun_ns >= STREAM
            if self.replied and not self.established and (sender == CLIENT or goes_on):
                self.established, self.reset = True, False
            self.replied |= sender == SERVER
            # Nobody agrees on tags by cookies here, so later such a chunk ends nothing.
            if self.protocol == SCTP and segment.chunk == SCTP_ABORT and not self.established:
                self.reset = True
            return
        if not is_valid(segment.flags):
            # Netfilter takes no note of such a packet. Nobody sends one, and it is all the same.
            self.unsure_state = True
        self._follow(sender, segment)
        was_reset = self.reset
        if segment.flags & RST:
            self._reset(segment, other)
            self.given_up |= sender == CLIENT and not was_reset and not self.established
            return
        if sender == SERVER:
            self.replied = True
        elif self.replied and not self.established and not segment.flags & SYN:
            self.established = True
            # Its client's acknowledgement shows that a reset before was not genuine.
            self.reset = self.doubted = False

    def try_again(self, now: int) -> bool:
        """Return whether a SYN goes on with what the client has just given up; then it begins anew.

        A program notes the time of a client's packet exactly to a second.
        """
        silent = now - self.peers[CLIENT].last_ns
        if not self.given_up or self.established or silent >= AGAIN:
            return False
        self.unsure |= silent >= AGAIN - SECOND
        self.reset = self.given_up = False
        for peer in self.peers:
            peer.fin, peer.acknowledged = False, None
        return True

    def copied(self) -> None:
        """Take note that its entries may have been copied: an upgrade goes on."""
        for peer in self.peers:
            peer.copied = True

    def _begins_again(self, segment: Segment) -> bool:
        if self.protocol == SCTP:
            return segment.chunk == SCTP_INIT
        return self.protocol == TCP and not self.established and is_opening(segment.flags)

    def _reset(self, segment: Segment, other: Peer) -> None:
        if self.reset:
            return
        if not self.established or other.acknowledged is None:
            self.reset = True
            return
        ahead = signed(segment.sequence - other.acknowledged)
        if ahead == 0:
            self.reset = True
        elif other.copied:
            # Without numbers each reset ends the connection.
            self.unsure_state = True
        elif segment.sequence == 0 and segment.flags & ACK:
            self.unsure_state = True
        elif 0 < ahead < other.window << other.shift:
            self.doubted = True

    def _follow(self, sender: int, segment: Segment) -> None:
        me, other = self.peers[sender], self.peers[1 - sender]
        genuine = self._is_plausible(segment, other)
        if other.copied and not genuine:
            self.unsure_state = True
        if segment.flags & RST:
            return
        if self.doubted and not is_opening(segment.flags):
            if genuine:
                self.doubted = False
            else:
                self.unsure_state = True
        counts = genuine
        if segment.flags & FIN:
            if other.acknowledged is None:
                # Before a server has answered, its client has nothing to close.
                counts = sender == SERVER or self.replied
            me.fin = me.fin or counts
        if not segment.flags & ACK:
            return
        usual = not segment.flags & FIN and (
            me.acknowledged is None
            or not self.established
            or bool(segment.flags & SYN)
            or abs(signed(segment.acknowledged - me.acknowledged)) < USUAL_PROGRESS
        )
        if usual or counts:
            me.acknowledged, me.window, me.copied = segment.acknowledged, segment.window, False

    def _is_plausible(self, segment: Segment, other: Peer) -> bool:
        if other.acknowledged is None:
            return True
        ahead = signed(segment.sequence - other.acknowledged)
        return -LONGEST_SEGMENT <= ahead <= 2 * (other.window << other.shift) + LONGEST_SEGMENT


_VALID = {SYN, SYN | ACK, RST, RST | ACK, FIN | ACK, ACK}


def is_valid(flags: int) -> bool:
    """True for flags that a TCP sends together."""
    return flags & ~(PSH | URG) in _VALID


def is_opening(flags: int) -> bool:
    """True for the flags of a packet that opens a TCP connection."""
    return is_valid(flags) and flags & (SYN | ACK) == SYN


def signed(number: int) -> int:
    """Return a difference of sequence numbers between -2**31 and 2**31 - 1."""
    return (number + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
