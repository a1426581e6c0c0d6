"""Frames beside the packets of connections: errors about them, netfilter's, unrelated ones."""

from __future__ import annotations

from bpfsvc.base.address import pack
from tests.fuzz.connections import Connection
from tests.fuzz.events import Foreign, IcmpError, Unrelated
from tests.fuzz.frames import (
    ACK,
    SCTP_INIT,
    SCTP_INIT_ACK,
    SYN,
    End,
    Segment,
    difference,
    ends,
    frame,
    icmp_error,
    other_bytes,
)
from tests.fuzz.model import FEW_PORTS, Model
from tests.fuzz.passages import Different, Passages
from tests.fuzz.unrelated import unrelated_frame
from tests.fuzz.world import endpoint_of

_ROUTER = {4: pack("172.16.0.1"), 6: pack("fd70::1")}


def send_unrelated(passages: Passages, event: Unrelated) -> None:
    """Send a frame that has nothing to do with Services."""
    data = unrelated_frame(event.kind, event.number)
    passage = passages.through(data)
    if passage.what not in ("leaves", "is delivered") or passage.left != data:
        raise Different(f"an unrelated frame {passage.what}, or is changed")
    passages.seen["unrelated frames"] += 1


def send_foreign(model: Model, passages: Passages, event: Foreign) -> None:
    """Have a connection of netfilter leave by the port that a connection is masqueraded to."""
    connection = model.connections.get(model.named(event))
    if connection is None or not connection.masqueraded or connection.port_lost:
        return
    if model.upgrading:
        # Only one of both builds is asked whether the port is free.
        return
    if not connection.is_open:
        return
    protocol, seen, backend = connection.protocol, connection.seen, connection.backend
    opening = Segment(SYN, 1, 0, 1000, chunk=SCTP_INIT)
    data = frame(protocol, seen, backend, opening)
    what, left = passages.leave(data)
    known = ends(left)
    about = f"netfilter's connection beside {connection}"
    if what == "is dropped" and model.ports == FEW_PORTS:
        return
    if what != "leaves" or known is None:
        raise Different(f"{about} {what}")
    source = known[1]
    if not model.take_from_closed(protocol, source, backend):
        raise Different(f"{about} has a 5-tuple that is taken")
    problem = difference(data, left, source, backend)
    if problem or source[1] not in model.ports:
        raise Different(f"{about} leaves from {endpoint_of(source)}: {problem}")
    reply = frame(protocol, backend, source, Segment(SYN | ACK, 1, 2, 9, chunk=SCTP_INIT_ACK))
    arrived = passages.through(reply)
    problem = difference(reply, arrived.routed, backend, seen)
    if arrived.what != "is delivered" or problem:
        raise Different(f"{about}: its answer {arrived.what}: {problem}")
    model.of_netfilter.add((protocol, seen, backend))
    model.seen["connections of netfilter by another port"] += 1


def send_icmp_error(model: Model, passages: Passages, event: IcmpError) -> None:
    """Send an error about a packet of a connection, as the packet has left the node."""
    connection = model.connections.get(model.named(event))
    if connection is None or connection.port_lost or not connection.is_certain:
        return
    router = _ROUTER[event.family]
    frames = [
        icmp_error(
            author[0] if event.by_receiver else router,
            receiver[0],
            (connection.protocol, receiver, quoted),
            event.kind,
            event.length,
        )
        for author, receiver, quoted in _ways(connection, event.about)
    ]
    passage = passages.through(frames[0])
    model.seen["errors about packets"] += 1
    if passage.what != "leaves":
        raise Different(f"an error about a packet of {connection} {passage.what}")
    _, routed, left = frames
    hooks = [("egress", passage.left, left)]
    if not passage.at_once:
        hooks.insert(0, ("ingress", passage.routed, routed))
    for hook, is_now, wanted in hooks:
        if is_now != wanted:
            problem = other_bytes(wanted, is_now)
            raise Different(f"an error about a packet of {connection}, after {hook}: {problem}")


def _ways(connection: Connection, about: int) -> list[tuple[End, End, End]]:
    """Return author, receiver and quote as the error arrives, between the hooks, as it leaves."""
    if about == 0:
        return [
            (connection.backend, connection.seen, connection.backend),
            (connection.backend, connection.routed, connection.backend),
            (connection.frontend, connection.client, connection.frontend),
        ]
    return [
        (connection.client, connection.frontend, connection.client),
        (connection.routed, connection.backend, connection.routed),
        (connection.seen, connection.backend, connection.seen),
    ]
