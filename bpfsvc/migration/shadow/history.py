"""What the Services and the node were during the last seconds, not only what they are now.

kube-proxy and this agent learn of a change at different moments, and kube-proxy writes its rules
some time later. So a connection is right if it fits any state of that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from bpfsvc.base.networks import contains
from bpfsvc.migration.decisions import Treatment, action_of
from bpfsvc.migration.shadow.node_view import NodeView
from bpfsvc.services.entries import Backend, Frontend, Place, Policies, Policy, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.plan import Plan

_T = TypeVar("_T")


class ServedFrontend(NamedTuple):
    """What a frontend was at some moment: the entries of its service port, and its policies."""

    owner: Applied
    policies: Policies

    @property
    def port(self) -> ServicePort:
        """The service port that owns it."""
        return self.owner.port

    def eligible(self, client_class: str) -> dict[Place, Backend]:
        """Return the backends that clients of a class may be given, in the order of their slots."""
        first, size = getattr(self.policies, client_class)[:2]
        return {slot.place: slot for slot in self.owner.backends()[first : first + size]}

    def treatment(self, client_class: str, client: Place, chosen: Place) -> Treatment:
        """Return what bpfsvc does with a client that was given the backend ``chosen``.

        A client outside of the source ranges is dropped, one that is its own backend masqueraded.
        """
        if self.policies.restricted and not any(
            contains(network, client[0]) for network in self.owner.ranges
        ):
            return Treatment("drop")
        eligible = self.eligible(client_class)
        backend = eligible.get(chosen)
        hairpin = backend is not None and backend.hairpin and backend.address == client[0]
        policy: Policy = getattr(self.policies, client_class)
        return Treatment(action_of(policy, hairpin=hairpin), frozenset(eligible))


Moment = ServedFrontend | None
"""A frontend at some moment; None: no Service had it."""


class History:
    """The present state, from the planner, and what it replaced during the last ``seconds``."""

    def __init__(self, planner: Planner, view: NodeView, seconds: float) -> None:
        self._planner = planner
        self._seconds = seconds
        self._view = view
        self._former_views: deque[tuple[float, NodeView]] = deque()
        self._former: dict[Frontend, deque[tuple[float, Moment]]] = {}
        """For each frontend that changed: what it was, and until when; the latest last."""
        self._backends: frozenset[Place] | None = None

    def writer(self, now: float) -> Callable[[Plan], None]:
        """Return what the planner calls for a plan, in place of writing it to a kernel."""
        return lambda plan: self._note(plan, now)

    def set_view(self, view: NodeView, now: float) -> None:
        """Use another view of the node from now on."""
        if view != self._view:
            self._former_views.append((now, self._view))
            self._view = view

    def forget(self, now: float) -> None:
        """Drop what was replaced too long ago."""
        oldest = now - self._seconds
        _drop(self._former_views, oldest)
        for frontend, moments in [*self._former.items()]:
            _drop(moments, oldest)
            if not moments:
                del self._former[frontend]

    def views(self, since: float) -> list[NodeView]:
        """Return the present view of the node and the views that ended after ``since``."""
        return [self._view, *_ended_after(self._former_views, since)]

    def moments(self, frontend: Frontend, since: float) -> list[Moment]:
        """Return what a frontend is, and what it was until some moment after ``since``."""
        former = self._former.get(frontend, deque())
        return [self._present(frontend), *_ended_after(former, since)]

    def is_backend(self, address: Place) -> bool:
        """True for an endpoint of any Service."""
        if self._backends is None:
            ports = self._planner.applied_state.snapshot()
            self._backends = frozenset(backend for port in ports for backend in port.counters())
        return address in self._backends

    def _present(self, frontend: Frontend) -> Moment:
        owner = self._planner.ownership.owner(frontend)
        if owner is None:
            return None
        for port in self._planner.applied_state.of(owner).values():
            policies = port.frontends().get(frontend)
            if policies:
                return ServedFrontend(port, policies)
        return None

    def _note(self, plan: Plan, now: float) -> None:
        """Note what a plan replaces; it is not part of the applied state yet."""
        self._backends = None
        for port, after in plan.applied.items():
            before = self._planner.applied_state.of(port[:2]).get(port)
            was = before.frontends() if before else {}
            for frontend in {*was, *(after.frontends() if after else ())}:
                policies = was.get(frontend)
                moment = ServedFrontend(before, policies) if before and policies else None
                self._former.setdefault(frontend, deque()).append((now, moment))


def _drop(former: deque[tuple[float, _T]], end: float) -> None:
    while former and former[0][0] < end:
        former.popleft()


def _ended_after(former: deque[tuple[float, _T]], since: float) -> list[_T]:
    return [moment for until, moment in reversed(former) if until >= since]
