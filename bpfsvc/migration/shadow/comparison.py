"""Compare a connection with what bpfsvc would have made of it.

There may be several right answers: each state of the last seconds (:mod:`.history`), and both
classes of a client where only its interface would tell. A connection that fits one of them is
right. Where nothing can be decided, nothing is reported:

* a connection of the node itself has the same address, masqueraded or not;
* the network (CNI) masquerades what pods send to addresses outside of the pod network, as well;
* a packet for an endpoint at this node's own address never leaves the node, so it is not
  masqueraded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, family
from bpfsvc.base.texts import list_text
from bpfsvc.migration.decisions import Treatment, differing
from bpfsvc.migration.shadow.affinity import Affinities
from bpfsvc.migration.shadow.flow import Flow
from bpfsvc.migration.shadow.history import History, ServedFrontend
from bpfsvc.migration.shadow.node_view import NodeView
from bpfsvc.services.entries import Frontend, Place
from bpfsvc.services.rules.nodeport_addresses import is_loopback

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

_REFUSALS = {"reject": "not_refused", "drop": "not_dropped"}
"""The kinds of differences where bpfsvc has no backend, by its action."""

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

    ``is_guard``: the frontend stands for all other ports of a cluster IP.
    """

    view: NodeView
    frontend: ServedFrontend | None
    is_guard: bool = False
    client_class: str = "other"

    @property
    def eligible(self) -> Collection[Place]:
        """The backends that the client may be given."""
        return self.frontend.eligible(self.client_class) if self.frontend else ()


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
        return flow.is_translated or any(state.frontend for state in self._candidates(flow, now))

    def compare(self, flow: Flow, seen: float) -> Comparison | None:
        """Compare a connection seen at ``seen``; None if it is not one to a Service."""
        candidates = [*self._candidates(flow, seen - self._seconds)]
        kinds = [self._kind(flow, state) for state in candidates]
        named = next((state.frontend for state in candidates if state.frontend), None)
        if named is None and not all(kinds):
            return None
        service = named.port[:2] if named else ("", "")
        if all(kinds):
            return Comparison(service, kinds[0], _text(flow, kinds[0], candidates[0]))
        fitting = [
            state
            for state, kind in zip(candidates, kinds, strict=True)
            if state.frontend and not kind
        ]
        if fitting and self._breaks_affinity(flow, candidates, fitting[0], seen):
            return Comparison(service, "affinity", _text(flow, "affinity", fitting[0]))
        return Comparison(service)

    # -- what may have been in force --

    def _candidates(self, flow: Flow, since: float) -> Iterator[_Candidate]:
        for view in self._history.views(since):
            for frontend, is_guard in self._frontends(view, flow, since):
                for client_class in view.classes(flow.client[0]):
                    yield _Candidate(view, frontend, is_guard, client_class)

    def _frontends(
        self, view: NodeView, flow: Flow, since: float
    ) -> Iterator[tuple[ServedFrontend | None, bool]]:
        """Yield the frontends of the destination: its own, the NodePort, the guard, none."""
        address, port = flow.asked
        for frontend in view.frontends(address, port, flow.protocol):
            moments = self._history.moments(frontend, since)
            yield from ((served, False) for served in moments if served)
            if None not in moments:
                return
        for served in self._history.moments(Frontend.rest(address), since):
            yield served, served is not None

    # -- differences --

    def _kind(self, flow: Flow, candidate: _Candidate) -> str:
        """Return how the connection differs from one state; "" if it does not."""
        served = candidate.frontend
        if served is None:
            return "unknown_frontend" if self._is_of_kube_proxy(flow, candidate.view) else ""
        if self._may_pass(flow, candidate):
            return ""
        bpfsvc = served.treatment(candidate.client_class, flow.client, flow.backend)
        kube_proxy, bpfsvc = _as_seen(flow, candidate, bpfsvc)
        for what in differing(kube_proxy, bpfsvc, one_connection=True):
            return _kind_of(what, kube_proxy.action, bpfsvc.action)
        return ""

    def _may_pass(self, flow: Flow, candidate: _Candidate) -> bool:
        """True if bpfsvc and kube-proxy are known to differ, or both leave the packet as it is.

        In mode iptables kube-proxy does not care for other ports of a cluster IP. An address that
        the node itself holds, as NodeLocal DNSCache does, is left to its listener. NodePorts on
        loopback are translated in mode iptables and for IPv4 only; a process may serve the others.
        """
        if flow.is_translated:
            return False
        address = flow.asked[0]
        if is_loopback(address):
            return not self._is_iptables or family(address) == 6
        is_cluster_ip = None not in self._history.moments(Frontend.rest(address), float("inf"))
        return (candidate.is_guard and self._is_iptables) or (
            is_cluster_ip and candidate.view.is_own(address)
        )

    def _is_of_kube_proxy(self, flow: Flow, view: NodeView) -> bool:
        """True if only kube-proxy can have translated it; hostPorts translate, too."""
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
            state.frontend.policies.affinity_seconds if state.frontend else 0
            for state in candidates
        )
        last = self._affinities.last(port, client, seconds, seen)
        self._affinities.note(port, client, flow.backend, seen)
        return (
            last is not None
            and last != flow.backend
            and all(state.frontend and last in state.eligible for state in candidates)
        )


def _as_seen(flow: Flow, candidate: _Candidate, bpfsvc: Treatment) -> tuple[Treatment, Treatment]:
    """Return kube-proxy's and bpfsvc's treatment, alike where a connection does not show which."""
    view, client, kube_proxy = candidate.view, flow.client[0], flow.treatment
    backend = flow.backend[0]
    if not kube_proxy.backends or not bpfsvc.backends:
        return kube_proxy, bpfsvc
    if view.is_own(backend):
        bpfsvc = bpfsvc._replace(action="forward")
    may_be_pod = candidate.client_class == "pod" or not view.knows_pods(family(client))
    may_be_of_cni = kube_proxy.action == "masquerade" and may_be_pod and not view.is_pod(backend)
    if view.is_own(client) or may_be_of_cni:
        kube_proxy = kube_proxy._replace(action=bpfsvc.action)
    return kube_proxy, bpfsvc


def _kind_of(what: str, kube_proxy: str, bpfsvc: str) -> str:
    """Return the kind of a difference; ``kube_proxy`` and ``bpfsvc`` are the actions."""
    if what == "backends":
        return "not_eligible"
    if bpfsvc in _REFUSALS:
        return _REFUSALS[bpfsvc]
    if kube_proxy == "pass":
        return "not_translated"
    return "not_masqueraded" if bpfsvc == "masquerade" else "masqueraded"


def _text(flow: Flow, kind: str, candidate: _Candidate) -> str:
    chosen = f", to {endpoint_text(*flow.backend)}" if flow.is_translated else ""
    text = f"{flow}{chosen}: {KINDS[kind]}"
    if candidate.frontend and kind in ("not_eligible", "not_translated"):
        backends = [endpoint_text(*backend) for backend in candidate.eligible]
        text += f" (eligible: {list_text(backends, _SHOWN)})"
    return text
