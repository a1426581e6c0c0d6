"""Compare a connection with what bpfsvc would have made of it.

There may be several right answers: the state of the last seconds (:mod:`.history`), and clients
whose class only their interface would tell. A connection that fits one of them is right. Where
nothing can be decided, nothing is reported:

* a connection of the node itself has the same address, masqueraded or not;
* the network (CNI) masquerades what pods send to addresses outside of the pod network, as well;
* a packet for an endpoint at this node's own address never leaves it, so it is not masqueraded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, family
from bpfsvc.base.networks import contains
from bpfsvc.base.texts import list_text
from bpfsvc.migration.shadow.affinity import Affinities
from bpfsvc.migration.shadow.flow import Flow
from bpfsvc.migration.shadow.history import History, ServedFrontend
from bpfsvc.migration.shadow.node_view import NodeView
from bpfsvc.services.entries import Backend, Frontend, Place, Policy

KINDS = {
    "not_eligible": "kube-proxy chose a backend that bpfsvc would not choose",
    "affinity": "kube-proxy did not choose the backend that the client had before",
    "masqueraded": "kube-proxy masqueraded, bpfsvc would not",
    "not_masqueraded": "bpfsvc would masquerade, kube-proxy did not",
    "not_translated": "bpfsvc would translate, kube-proxy did not",
    "not_refused": "bpfsvc would refuse it, kube-proxy did not",
    "not_dropped": "bpfsvc would drop it, kube-proxy did not",
    "unknown_frontend": "kube-proxy translated it, bpfsvc knows no Service at this address",
}
"""The kinds of differences, in words."""

_SHOWN = 5
"""Backends that a text names."""


class Comparison(NamedTuple):
    """A connection to a Service, compared. ``kind`` and ``text`` are empty if nothing differs.

    ``service``: namespace and name; both empty where no Service is known.
    """

    service: tuple[str, str]
    kind: str = ""
    text: str = ""


class _Candidate(NamedTuple):
    """One state that may have been in force: the node, the frontend if there is one, the client.

    ``is_guard``: the frontend is that of all other ports of a cluster IP.
    """

    view: NodeView
    frontend: ServedFrontend | None
    is_guard: bool = False
    client_class: str = "other"

    @property
    def policy(self) -> Policy:
        assert self.frontend
        policy: Policy = getattr(self.frontend.policies, self.client_class)
        return policy

    @property
    def eligible(self) -> dict[Place, Backend]:
        assert self.frontend
        return {one.place: one for one in self.frontend.eligible(self.client_class)}


class Comparer:
    """Compares connections, each some time after it was seen."""

    def __init__(self, history: History, *, seconds: float, is_iptables: bool) -> None:
        """``seconds``: how long kube-proxy may take; ``is_iptables``: its mode."""
        self._history = history
        self._seconds = seconds
        self._is_iptables = is_iptables
        self._affinities = Affinities(is_iptables=is_iptables)

    def concerns(self, flow: Flow, now: float) -> bool:
        """True if the connection may be one to a Service; quick, for all that a node opens."""
        return flow.is_translated or any(one.frontend for one in self._candidates(flow, now))

    def compare(self, flow: Flow, seen: float) -> Comparison | None:
        """Compare a connection seen at ``seen``; None if it is not one to a Service."""
        candidates = [*self._candidates(flow, seen - self._seconds)]
        kinds = [self._kind(flow, one) for one in candidates]
        named = next((one.frontend for one in candidates if one.frontend), None)
        if named is None and not all(kinds):
            return None
        service = named.port[:2] if named else ("", "")
        if all(kinds):
            return Comparison(service, kinds[0], _text(flow, kinds[0], candidates[0]))
        fitting = [
            one for one, kind in zip(candidates, kinds, strict=True) if one.frontend and not kind
        ]
        if fitting and self._breaks_affinity(flow, candidates, fitting[0], seen):
            return Comparison(service, "affinity", _text(flow, "affinity", fitting[0]))
        return Comparison(service)

    # -- what may have been in force --

    def _candidates(self, flow: Flow, since: float) -> Iterator[_Candidate]:
        for view in self._history.views(since):
            for frontend, is_guard in self._frontends(view, flow, since):
                for each in view.classes(flow.client[0]):
                    yield _Candidate(view, frontend, is_guard, each)

    def _frontends(
        self, view: NodeView, flow: Flow, since: float
    ) -> Iterator[tuple[ServedFrontend | None, bool]]:
        """Yield the frontends of the destination: its own, that of NodePorts, the guard, none."""
        address, port = flow.asked
        for frontend in view.frontends(address, port, flow.protocol):
            moments = self._history.moments(frontend, since)
            yield from ((one, False) for one in moments if one)
            if None not in moments:
                return
        yield from (
            (one, one is not None) for one in self._history.moments(Frontend.rest(address), since)
        )

    # -- differences --

    def _kind(self, flow: Flow, candidate: _Candidate) -> str:
        """Return how the connection differs from one state; "" if it does not."""
        served = candidate.frontend
        if served is None:
            return "unknown_frontend" if self._is_of_kube_proxy(flow, candidate.view) else ""
        if self._may_pass(flow, candidate):
            return ""
        if served.policies.restricted and not any(
            contains(one, flow.client[0]) for one in served.owner.ranges
        ):
            return "not_dropped"
        if not candidate.policy.size:
            return "not_refused" if candidate.policy.reject else "not_dropped"
        if not flow.is_translated:
            return "not_translated"
        backend = candidate.eligible.get(flow.backend)
        if backend is None:
            return "not_eligible"
        return _masquerade_kind(flow, candidate, backend)

    def _may_pass(self, flow: Flow, candidate: _Candidate) -> bool:
        """True if bpfsvc and kube-proxy are known to differ, or both leave the packet as it is.

        In mode iptables other ports of a cluster IP are no concern of kube-proxy's. An address that
        the node itself holds, as NodeLocal DNSCache does, is left to its listener.
        """
        if flow.is_translated:
            return False
        address = flow.asked[0]
        is_cluster_ip = None not in self._history.moments(Frontend.rest(address), float("inf"))
        return (candidate.is_guard and self._is_iptables) or (
            is_cluster_ip and candidate.view.is_own(address)
        )

    def _is_of_kube_proxy(self, flow: Flow, view: NodeView) -> bool:
        """True if only kube-proxy can have translated it. hostPorts and others do that, too."""
        address, port = flow.asked
        if not flow.is_translated:
            return False
        if view.is_own(address):
            return view.is_node_port(address, port)
        return view.is_cluster_ip(address) or self._history.is_backend(flow.backend)

    def _breaks_affinity(
        self, flow: Flow, candidates: list[_Candidate], fitting: _Candidate, seen: float
    ) -> bool:
        """True if the client has changed its backend without need; note the new one."""
        served = fitting.frontend
        if served is None or not served.policies.affinity_seconds or not flow.is_translated:
            return False
        client, port = flow.client[0], served.port
        seconds = min(
            one.frontend.policies.affinity_seconds if one.frontend else 0 for one in candidates
        )
        last = self._affinities.last(port, client, seconds, seen)
        self._affinities.note(port, client, flow.backend, seen)
        return (
            last is not None
            and last != flow.backend
            and all(one.frontend and last in one.eligible for one in candidates)
        )


def _masquerade_kind(flow: Flow, candidate: _Candidate, backend: Backend) -> str:
    view, client = candidate.view, flow.client[0]
    if view.is_own(client):
        return ""
    hairpin = backend.hairpin and backend.address == client
    expected = (candidate.policy.masquerade or hairpin) and not view.is_own(backend.address)
    if expected == flow.is_masqueraded:
        return ""
    if expected:
        return "not_masqueraded"
    may_be_pod = candidate.client_class == "pod" or not view.knows_pods(family(client))
    return "" if may_be_pod and not view.is_pod(backend.address) else "masqueraded"


def _text(flow: Flow, kind: str, candidate: _Candidate) -> str:
    chosen = f", to {endpoint_text(*flow.backend)}" if flow.is_translated else ""
    text = f"{flow}{chosen}: {KINDS[kind]}"
    if candidate.frontend and kind in ("not_eligible", "not_translated"):
        places = [endpoint_text(*place) for place in candidate.eligible]
        text += f" (eligible: {list_text(places, _SHOWN)})"
    return text
