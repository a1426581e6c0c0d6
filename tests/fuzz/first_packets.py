"""What the first packet of a flow has to meet, and a packet of no connection."""

from __future__ import annotations

from tests.fuzz.frames import FIN, RST, End, difference, ends, refusal_difference
from tests.fuzz.model import FEW_PORTS, NODE, Model, Sent
from tests.fuzz.passages import Different
from tests.fuzz.world import endpoint_of
from tests.specification.verdicts import Verdict

_NO_PORT = 0


def judge_first(model: Model, sent: Sent) -> None:
    """Judge a packet that can open a connection, and has none."""
    verdict = model.verdict(sent.event)
    about = f"first packet, {verdict.rule}"
    if verdict.verdict == "none":
        _begins_directly(model, sent)
    elif verdict.verdict == "drop":
        if sent.what != "is dropped at ingress":
            raise Different(f"{about}: {sent.what}")
        model.seen["first packets dropped"] += 1
    elif verdict.verdict == "reject":
        _is_refused(model, sent, about)
    elif sent.what == "is dropped at egress" and model.ports == FEW_PORTS:
        # No port was free, or none that the search has tried.
        _opened(model, sent, verdict, about, has_port=False)
        model.seen["connections without a port"] += 1
    elif sent.what != "leaves":
        raise Different(f"{about}: {sent.what}")
    else:
        _opened(model, sent, verdict, about, has_port=True)


def judge_unknown(model: Model, sent: Sent) -> None:
    """Judge a packet that opens nothing, and is of no connection."""
    what, left = sent.what, sent.left
    verdict = model.verdict(sent.event)
    if verdict.verdict == "none":
        _passes(sent)
        if left != sent.data:
            raise Different("a packet for no Service is changed")
        if sent.segment.flags & (FIN | RST):
            model.direct.pop(ends(sent.data), None)
        return
    # A port without a frontend: the middle of a connection passes there, as in iptables mode.
    if what == "leaves" and verdict.frontend:
        raise Different(f"of no connection, for {verdict.rule}, leaves for the frontend")
    if what == "is sent back at egress":
        problem = refusal_difference(sent.data, left)
        if problem or sent.segment.flags & RST:
            raise Different(problem or "a reset is answered")
        model.seen["packets of no connection reset"] += 1
    elif what == "is delivered" and left != sent.data:
        raise Different("a packet of no connection is changed")


def _passes(sent: Sent) -> None:
    if sent.what not in ("leaves", "is delivered"):
        raise Different(f"a packet for no Service {sent.what}")


def _is_refused(model: Model, sent: Sent, about: str) -> None:
    if sent.what == "is dropped at ingress" and sent.segment.flags & RST:
        return
    if sent.what != "is sent back at ingress":
        raise Different(f"{about}: {sent.what}")
    problem = refusal_difference(sent.data, sent.left)
    if problem:
        raise Different(f"{about}: {problem}")
    model.seen["first packets refused"] += 1


def _begins_directly(model: Model, sent: Sent) -> None:
    """Judge the first packet of a flow to no frontend."""
    _passes(sent)
    data, routed, left = sent.data, sent.routed, sent.left
    owner = model.owner(data)
    between, wire = ends(routed), ends(left)
    if left == data:
        if owner and owner.is_open:
            raise Different(f"a direct flow has a 5-tuple of {owner}")
        model.seen["packets for no Service"] += 1
        model.direct_begins(sent.key)
        if owner:
            # The entries of a closed connection make room.
            model.remove(owner)
        return
    _, client, target = sent.key
    if owner is None or between is None or wire is None or between != wire:
        raise Different("for no Service: is changed")
    problem = difference(data, left, wire[1], target)
    if problem or wire[1][0] != client[0] or wire[1][1] not in model.ports:
        raise Different(f"a direct flow is changed to {wire}: {problem}")
    model.seen["direct flows by another port"] += 1
    model.add(sent, wire[1], wire[1], target, "direct")


def _opened(model: Model, sent: Sent, verdict: Verdict, about: str, has_port: bool) -> None:
    """Judge the translation of a first packet that has a backend."""
    client = sent.key[1]
    between, wire = ends(sent.routed), ends(sent.left if has_port else sent.routed)
    if between is None or wire is None:
        raise Different(f"{about}: leaves as something else")
    _, seen, backend = wire
    text = endpoint_of(backend)
    if text not in verdict.endpoints:
        raise Different(f"{about}: went to {text}, not one of {verdict.endpoints}")
    masqueraded = verdict.masquerade or text in verdict.masquerade_endpoints
    if not has_port:
        if not masqueraded:
            raise Different(f"{about}: {sent.what}")
        seen = NODE[sent.event.family], _NO_PORT
    else:
        problem = _source_problem(model, sent, seen, masqueraded)
        problem = problem or difference(sent.data, sent.left, seen, backend)
        if problem:
            raise Different(f"{about}: {problem}")
    model.keep_affinity(verdict, sent.event, text, about)
    if between[2] != backend or between[1][0] != client[0]:
        raise Different(f"{about}: is routed as {between}")
    if masqueraded:
        model.seen["connections masqueraded"] += 1
    model.add(sent, between[1], seen, backend, about)


def _source_problem(model: Model, sent: Sent, seen: End, masqueraded: bool) -> str:
    """Return what is wrong with the source that the backend sees."""
    if not masqueraded:
        is_right = seen[0] == sent.key[1][0]
        return "" if is_right else f"source became {endpoint_of(seen)}"
    is_right = seen[0] == NODE[sent.event.family] and seen[1] in model.ports
    return "" if is_right else f"masqueraded to {endpoint_of(seen)}"
