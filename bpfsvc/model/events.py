"""Events of connections as the agent streams them and ``bpfsvc observe`` reads them: JSON lines.

A line is an event, or says that events were lost. Fields that are not known are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from bpfsvc.base.errors import BpfsvcError

VERDICTS = {
    "made": "forwarded",
    "answered": "forwarded",
    "repeated": "forwarded",
    "refused": "refused",
    "dropped": "dropped",
    "ended": "forwarded",
    "dropped_elsewhere": "dropped",
}
"""Kinds of events, and what became of the packet or call."""

REASONS = {
    "no_endpoints": "no endpoint serves this client",
    "no_such_port": "the Service has no such port",
    "no_service": "no Service has this address",
    "backends_full": "all backends have as many connections as the Service allows",
    "source_range": "the client is not in loadBalancerSourceRanges",
    "backend_reset": "the backend has reset it",
    "source_ports_exhausted": "no source port is free",
    "connections_full": "the table of connections is full, or there is no memory for an entry",
    "masquerade": "there is no address or port to masquerade to",
    "closed": "it was closed",
    "client_reset": "the client has reset it",
    "unanswered": "its backend has never answered",
    "idle": "no packet has come for long",
    "removed": "its endpoint or its Service has left",
    "given_up": "its client's socket gets no answer any more, or was disconnected",
}
"""Why something is refused, dropped or ended, in words."""

KERNEL_REASON = "SKB_DROP_REASON_"
"""How the reasons of ``dropped_elsewhere`` begin: they are the kernel's names."""

KERNEL_REASONS = {
    "NETFILTER_DROP": "a rule of netfilter drops it",
    "IP_RPFILTER": "its source is not reached by this interface (rp_filter)",
    "IP_OUTNOROUTES": "there is no route for what this machine sends",
    "IP_INNOROUTES": "there is no route for what has come",
    "IP_INADDRERRORS": "its addresses are not routed",
    "IP_INVALID_SOURCE": "its source is no address of a sender",
    "IP_LOCAL_SOURCE": "its source is an address of this machine",
    "SOCKET_RCVBUFF": "the receiver's socket buffer is full",
    "SOCKET_BACKLOG": "the receiver's backlog is full",
    "TCP_LISTEN_OVERFLOW": "the listener accepts too slowly",
    "NO_SOCKET": "no socket is there for it",
    "XFRM_POLICY": "a policy of IPsec forbids it",
    "NEIGH_FAILED": "the next hop does not answer",
    "NEIGH_QUEUEFULL": "too many packets wait for the next hop",
    "NEIGH_CREATEFAIL": "the table of neighbours is full",
    "QDISC_DROP": "the queue of an interface is full",
    "QDISC_OVERLIMIT": "the queue of an interface is full",
    "FULL_RING": "the queue of an interface is full",
    "CPU_BACKLOG": "the queue of a processor is full (netdev_max_backlog)",
    "DEV_READY": "the interface is down",
    "PKT_TOO_BIG": "it is larger than the MTU",
    "BPF_CGROUP_EGRESS": "a program of the sender's cgroup forbids it",
    "SOCKET_FILTER": "a filter of the receiver's socket drops it",
    "SECURITY_HOOK": "a security module forbids it",
    "XDP": "a program at XDP drops it",
    "PROTO_MEM": "the protocol's memory is at its limit",
    "NOMEM": "there is no memory",
    "NOT_SPECIFIED": "the kernel gives no reason",
}
"""The reasons that operators meet, in words; without their common begin."""


def reason_text(reason: str) -> str:
    """Return why something is refused, dropped or ended, in words."""
    if not reason.startswith(KERNEL_REASON):
        return REASONS.get(reason, reason)
    words = KERNEL_REASONS.get(reason.removeprefix(KERNEL_REASON))
    return f"{words} ({reason})" if words else reason


PATHS = ("tc", "fast_path", "socket")
"""What carries a connection."""


class EventEnd(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One end of a connection; ``pod`` is ``NAMESPACE/NAME``, ``port`` 0 if it is not known."""

    address: str = ""
    port: int = 0
    pod: str = ""
    node: str = ""

    @property
    def place(self) -> str:
        """Its address and port, the port only if it is known."""
        text = f"[{self.address}]" if ":" in self.address else self.address
        return f"{text}:{self.port}" if self.port else text

    @property
    def text(self) -> str:
        """The same, with the names of the pod and the node that have it."""
        names = " on ".join(name for name in (self.pod, self.node) if name)
        return f"{self.place} ({names})" if names else self.place


class EventService(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A service port; ``port`` is its name, or its number if it has no name."""

    namespace: str = ""
    name: str = ""
    port: str = ""

    @property
    def text(self) -> str:
        """``namespace/name:port``; "-" if no Service is known."""
        return f"{self.namespace}/{self.name}:{self.port}" if self.name else "-"


NO_END, NO_SERVICE = EventEnd(), EventService()
"""What is left out of a line: these very objects."""


_LATEST = 253_370_764_800
"""The begin of the year 9999: a later time cannot be written in all zones."""

EventTime = Annotated[float, msgspec.Meta(ge=0, le=_LATEST)]


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What became of a connection.

    * ``time``: seconds since 1970; the time of the packet or call.
    * ``node``: the node that saw it.
    * ``kind``: of :data:`VERDICTS`; ``reason``: of :data:`REASONS`, or the
      kernel's name; ``path``: of :data:`PATHS`.
    * ``chosen_by``: what chose the backend of a connection that is made: session affinity (which
      keeps the client's last backend, if it has one) or a scheduler; empty: it is random.
    * ``took_ms``: from the client's first packet until this one; of an end, until the last one.
    * ``sample``: only one event of so many is in the stream.
    * ``lost``: how many events are missing before the next one; then there is nothing else.
      ``lost_by``: ``kernel`` (the agent was late) or ``reader`` (the command was).
    """

    time: EventTime
    node: str = ""
    kind: str = ""
    reason: str = ""
    path: str = ""
    protocol: str = ""
    service: EventService = NO_SERVICE
    client: EventEnd = NO_END
    frontend: EventEnd = NO_END
    backend: EventEnd = NO_END
    chosen_by: str = ""
    masquerade: bool = False
    took_ms: float | None = None
    sample: int = 1
    lost: int = 0
    lost_by: str = ""

    @property
    def verdict(self) -> str:
        """What became of the packet or call."""
        return VERDICTS.get(self.kind, "")

    def ends(self) -> Iterator[EventEnd]:
        """Return the ends: the client, the frontend, and the backend if there is one."""
        yield from (end for end in (self.client, self.frontend, self.backend) if end.address)


class NotAnEvent(BpfsvcError):
    """A line is no event of this version of bpfsvc."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


def encode_event(event: Event) -> bytes:
    """Return an event as a line of JSON."""
    return _encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """Return the event of a line; raise :class:`NotAnEvent` if it has none."""
    try:
        event = _decode(line)
    except msgspec.MsgspecError as error:
        raise NotAnEvent(f"not an event: {error}") from None
    if not event.lost and event.kind not in VERDICTS:
        raise NotAnEvent(f"not an event: its kind is {event.kind!r}")
    return event
