"""Turn the decision of the programs, and the entry that matched, into an answer and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.base.errors import KernelError
from bpfsvc.explain.question import Question
from bpfsvc.services.entries import Backend, Frontend, Place, Policies, Policy, frontend_text
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.extra import overflow_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What happens to a packet.

    * ``endpoints``: all backends that the client may be given, as ``ip:port`` texts, sorted.
    * ``masquerade``: True if all of them see an address of this node instead of the client's.
    * ``masquerade_endpoints``: the endpoints that see the node's address, if not all do (hairpin).
    * ``frontend``, ``service``: what matched; empty if nothing did.
    * ``reasons``: each rule that was applied, and each endpoint that is not eligible, with why.
    * ``lately``: connections to this Service that failed in the last minutes.
    """

    verdict: str
    endpoints: tuple[str, ...] = ()
    masquerade: bool = False
    masquerade_endpoints: tuple[str, ...] = ()
    frontend: str = ""
    service: str = ""
    reasons: tuple[str, ...] = ()
    lately: tuple[str, ...] = ()

    def to_object(self) -> dict[str, object]:
        """Return the JSON object."""
        fields: dict[str, object] = {
            "verdict": self.verdict,
            "endpoints": list(self.endpoints),
            "masquerade": self.masquerade,
        }
        if self.masquerade_endpoints:
            fields["masquerade_endpoints"] = list(self.masquerade_endpoints)
        fields |= {
            "frontend": self.frontend,
            "service": self.service,
            "reasons": list(self.reasons),
        }
        return {**fields, "lately": list(self.lately)} if self.lately else fields

    def lines(self) -> list[str]:
        """Return the lines that people read."""
        head = self.verdict
        if self.frontend:
            head += f"  {self.frontend} of {self.service}"
        lines = [head]
        for endpoint in self.endpoints:
            masqueraded = self.masquerade or endpoint in self.masquerade_endpoints
            lines.append(f"  -> {endpoint}{' (masqueraded)' if masqueraded else ''}")
        lines += [f"  because {reason}" for reason in self.reasons]
        lines += [f"  lately {failure}" for failure in self.lately]
        return lines


class Outcome(NamedTuple):
    """The decision of the programs on a question that matched a frontend.

    ``client`` is one of ``pod``, ``node`` and ``other``. ``own`` has the node's addresses, packed.
    ``backend`` is the one chosen for this packet, and ``source`` the client that it would see,
    empty where no packet was sent. ``spilled``: the connection overflows from the near endpoints.
    """

    verdict: str
    question: Question
    frontend: Frontend
    owner: Applied
    client: str
    own: Set[bytes]
    backend: Place
    source: bytes = b""
    spilled: bool = False

    @property
    def is_chosen(self) -> bool:
        """True if a backend was chosen; recorded entries may leave that open."""
        return bool(self.backend[0])

    @property
    def policies(self) -> Policies:
        """The policies of this frontend."""
        return self.owner.frontends()[self.frontend]

    @property
    def policy(self) -> Policy:
        """The policy for this kind of client."""
        policy: Policy = getattr(self.policies, self.client)
        return policy

    @property
    def chosen_by(self) -> Policy:
        """The policy of the choice; of all endpoints that serve, if the connection overflows."""
        return (self.spilled and overflow_policy(self.owner.extra)) or self.policy

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that the client may be given."""
        first, size = self.chosen_by[:2]
        return self.owner.backends()[first : first + size]

    @property
    def hairpins(self) -> tuple[Backend, ...]:
        """Backends that are the client itself: they are masqueraded for it."""
        source = self.question.source
        return tuple(
            backend for backend in self.backends if backend.hairpin and backend.address == source
        )

    @property
    def staying(self) -> tuple[Backend, ...]:
        """Backends that are this node itself: a packet that came in does not leave the node.

        A source is replaced where a packet leaves, so these backends see the client's address.
        """
        if self.question.is_of_node:
            return ()
        return tuple(backend for backend in self.backends if backend.address in self.own)

    @property
    def masqueraded(self) -> tuple[Backend, ...]:
        """Backends that see an address of this node in place of the client's."""
        asked = self.backends if self.policy.masquerade else self.hairpins
        return tuple(backend for backend in asked if backend not in self.staying)


def answer_for(outcome: Outcome, reasons: tuple[str, ...]) -> Answer:
    """Return the answer; raise :class:`KernelError` if the packet contradicts the entries."""
    dnat = outcome.verdict == "dnat"
    if dnat:
        _check(outcome)
    masqueraded = _texts(outcome.masqueraded) if dnat else ()
    endpoints = _texts(outcome.backends) if dnat else ()
    every = dnat and masqueraded == endpoints
    return Answer(
        verdict=outcome.verdict,
        endpoints=endpoints,
        masquerade=every,
        masquerade_endpoints=() if every else masqueraded,
        frontend=frontend_text(outcome.frontend),
        service=f"{outcome.owner.port.namespace}/{outcome.owner.port.name}",
        reasons=reasons,
    )


def answer_without_frontend(
    verdict: str, question: Question, owners: Mapping[Frontend, Applied]
) -> Answer:
    """Return the answer for an address and port that no Service has."""
    rest = Frontend.rest(question.destination)
    owner = owners.get(rest)
    if verdict == "reject" and owner:
        return Answer(
            verdict=verdict,
            frontend=frontend_text(rest),
            service=f"{owner.port.namespace}/{owner.port.name}",
            reasons=("the cluster IP belongs to this Service, but the Service has no such port",),
        )
    if verdict == "drop":
        return Answer(
            verdict=verdict, reasons=("the address lies in a ServiceCIDR, but no Service has it",)
        )
    return Answer(verdict=verdict, reasons=("no Service has this address and port",))


def _check(outcome: Outcome) -> None:
    chosen = outcome.backend
    if not outcome.is_chosen:
        return
    if chosen not in {backend.place for backend in outcome.backends}:
        raise KernelError(f"{endpoint_text(*chosen)} was chosen although it is not eligible")
    if not outcome.source:
        return
    masqueraded = chosen in {backend.place for backend in outcome.masqueraded}
    if (outcome.source != outcome.question.source) != masqueraded:
        raise KernelError(f"{endpoint_text(*chosen)} sees {unpack(outcome.source)} as its client")


def _texts(backends: tuple[Backend, ...]) -> tuple[str, ...]:
    return tuple(sorted({endpoint_text(*backend.place) for backend in backends}))
