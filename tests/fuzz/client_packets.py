"""Packets of clients: sent through the node, and held against the model."""

from __future__ import annotations

from tests.fuzz.connections import Connection
from tests.fuzz.events import Packet
from tests.fuzz.first_packets import judge_first, judge_unknown
from tests.fuzz.frames import TCP, addresses_of, difference, ends, frame, transport_of
from tests.fuzz.model import FEW_PORTS, NODE, Key, Model, Sent
from tests.fuzz.passages import Different, Passage, Passages
from tests.fuzz.segments import is_first, segment_of
from tests.fuzz.world import endpoint_of


def send_of_client(model: Model, passages: Passages, key: Key, event: Packet) -> None:
    """Send a packet of a client; raise :class:`Different`."""
    segment = segment_of(key[0], model.connections.get(key), event)
    data = frame(*key, segment)
    if _is_left_out(model, key, data, is_first(key[0], segment)):
        return
    if event.kept:
        _send_truncated(passages, data, event.kept)
        return
    pieces = passages.pieces(data, event.cut)
    results = passages.all_through(pieces, event.number)
    _judge(model, Sent(key, event, segment, pieces[0], results[0]))
    connection = model.connections.get(key)
    if connection is None:
        return
    _hides_its_client(connection, results)
    if results[0].what == "leaves":
        routed = connection.routed, connection.backend
        passages.follow(pieces, results, routed, (connection.seen, connection.backend))


def _is_left_out(model: Model, key: Key, data: bytes, opens: bool) -> bool:
    """True for the middle of a direct connection whose beginning nobody has seen.

    Another connection may have its 5-tuple, and keeps it for a while after its end. While a build
    is being replaced, no client opens a connection from a port that it has used: only one of both
    builds may know that the connection before is closed, or is removed.
    """
    connection = model.connections.get(key)
    if opens and model.upgrading and key[:2] in model.used:
        return connection is None or not connection.is_open
    if opens or connection:
        return False
    is_unseen = key[2] in model.world.endpoints_of_all and key not in model.direct
    return is_unseen or model.owner(data) is not None


def _send_truncated(passages: Passages, data: bytes, kept: int) -> None:
    """Send a frame that ends before its ports."""
    # A test run takes only frames that have all of the IP header.
    short = data[: max(34 if data[12] == 8 else 54, min(kept, transport_of(data)[1] + 3))]
    passage = passages.through(short)
    if "dropped" not in passage.what and passage.left != short:
        raise Different(f"a truncated frame {passage.what}, and is changed")
    passages.seen["truncated frames"] += 1


def _judge(model: Model, sent: Sent) -> None:
    connection = model.connections.get(sent.key)
    opens = is_first(sent.key[0], sent.segment)
    if connection is not None:
        if not opens:
            _hides_its_client(connection, [sent.passage])
        if _goes_on(model, connection, sent, opens):
            return
        model.remove(connection)
    if opens:
        judge_first(model, sent)
    else:
        judge_unknown(model, sent)


def _hides_its_client(connection: Connection, results: list[Passage]) -> None:
    """Assert that the backend of a masqueraded connection does not get its client's address.

    This holds even where the model does not know whether the connection is still there: a packet
    that opens nothing does not leave for a backend then.
    """
    if not connection.masqueraded:
        return
    own = connection.client[0], connection.backend[0]
    for passage in results:
        if passage.what == "leaves" and addresses_of(passage.left) == own:
            raise Different(f"a packet of {connection} leaves with the address of its client")


def _goes_on(model: Model, connection: Connection, sent: Sent, opens: bool) -> bool:
    """True if a packet is of a connection that was there before."""
    if connection.protocol == TCP and opens and connection.closed and connection.is_certain:
        if not connection.try_again(model.now):
            return False
        model.seen["attempts that go on"] += 1
    problem = _problem(model, connection, sent)
    if problem and connection.is_certain:
        raise Different(f"client's packet of {connection}: {problem}")
    if problem:
        return False
    if opens and not connection.is_certain:
        # Perhaps it has opened another connection, to the same backend.
        model.forget_client(sent.event)
        connection.unsure_state = True
    model.noted(connection, sent.event, sent.segment)
    model.seen["packets of clients"] += 1
    return True


def _problem(model: Model, connection: Connection, sent: Sent) -> str:
    """Return what is wrong with a packet of the client of a connection."""
    what, routed, left, at_once = sent.passage
    is_without_port = (
        connection.port_lost and what == "is dropped at egress" and model.ports == FEW_PORTS
    )
    if what != "leaves" and not is_without_port:
        return what
    source = connection.seen if at_once else connection.routed
    problem = difference(sent.data, routed, source, connection.backend)
    if problem:
        return f"after ingress: {problem}"
    if is_without_port:
        return ""
    if connection.port_lost:
        _takes_port(model, connection, sent)
    problem = difference(sent.data, left, connection.seen, connection.backend)
    return f"as it leaves: {problem}" if problem else ""


def _takes_port(model: Model, connection: Connection, sent: Sent) -> None:
    """Judge the port that a connection gets in place of one that another connection has taken."""
    wire = ends(sent.left)
    if wire is None or wire[1] == connection.seen:
        return
    seen = wire[1]
    if seen[0] != NODE[sent.event.family] or seen[1] not in model.ports:
        raise Different(f"a packet of {connection} leaves from {endpoint_of(seen)}")
    connection.seen = seen
    model.are_apart(connection, "by another port")
    model.seen["lost ports replaced"] += 1
