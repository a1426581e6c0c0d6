"""Packets of backends: sent through the node, and held against the model."""

from __future__ import annotations

from tests.fuzz.connections import Connection, is_opening
from tests.fuzz.events import Packet
from tests.fuzz.frames import TCP, difference, ends, frame
from tests.fuzz.model import Model
from tests.fuzz.passages import Different, Passages
from tests.fuzz.segments import segment_of


def send_of_server(model: Model, passages: Passages, connection: Connection, event: Packet) -> None:
    """Send a packet of the backend of a connection; raise :class:`Different`."""
    if not connection.seen[1]:
        # It has no port; the one that it had is another connection's.
        return
    segment = segment_of(connection.protocol, connection, event)
    opens = connection.protocol == TCP and is_opening(segment.flags)
    if opens and model.upgrading:
        # The new programs may have a closed connection that only the old ones have removed.
        return
    data = frame(connection.protocol, connection.backend, connection.seen, segment)
    pieces = passages.pieces(data, event.cut)
    results = passages.all_through(pieces, event.number)
    data = pieces[0]
    what, routed, left, at_once = results[0]
    if opens and not connection.is_open and _is_untranslated(model, connection, data, left):
        _opens_its_own(model, connection)
        return
    problem = what if what != "leaves" else ""
    if not at_once:
        problem = problem or difference(data, routed, connection.backend, connection.routed)
    problem = problem or difference(data, left, connection.frontend, connection.client)
    if not problem:
        between = connection.backend, connection.routed
        passages.follow(pieces, results, between, (connection.frontend, connection.client))
        model.noted(connection, event, segment)
        model.seen["packets of servers"] += 1
    elif connection.is_certain and not connection.port_lost:
        raise Different(f"server's packet of {connection}: {problem}")
    elif opens:
        # It is the backend's own, and has removed what was left of the closed one.
        connection.unsure = True


def _is_untranslated(model: Model, connection: Connection, data: bytes, left: bytes) -> bool:
    """True if a frame has kept its ends; or all but its port, where netfilter has that 5-tuple."""
    after = ends(left)
    wire = connection.protocol, connection.seen, connection.backend
    if left == data or wire not in model.of_netfilter or after is None:
        return left == data
    _, source, destination = after
    is_same = source[0] == connection.backend[0] and destination == connection.seen
    return is_same and not difference(data, left, source, destination)


def _opens_its_own(model: Model, connection: Connection) -> None:
    """The backend opens a connection of its own, from the port of a closed one."""
    model.seen["connections of backends"] += 1
    if connection.masqueraded:
        # Its pair of entries between the hooks is still there.
        connection.lose_port()
    else:
        model.remove(connection)
