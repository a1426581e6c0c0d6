"""From what the programs decided, and the row that they found, to an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, endpoint_text, unpack
from bpfsvc.errors import KernelError
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.question import Question
from bpfsvc.programmed import Programmed
from bpfsvc.rows import PROTOCOL_NAMES, Backend, Frontend, Place, Policy

_WILDCARDS = (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6)


class Judged(NamedTuple):
    """What is known of a question whose frontend is a service port's.

    ``chosen`` is the backend of this one packet and ``seen`` the client that it would see, empty
    where no packet was sent.
    """

    verdict: str
    question: Question
    frontend: Frontend
    owner: Programmed
    client: str
    chosen: Place
    seen: bytes

    @property
    def policy(self) -> Policy:
        """What clients of this class meet there."""
        policy: Policy = getattr(self.owner.frontends()[self.frontend], self.client)
        return policy

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Whom the client may be given."""
        first, size = self.policy[:2]
        return self.owner.backends()[first : first + size]

    @property
    def hairpins(self) -> tuple[Backend, ...]:
        """Those of them that are the client itself, and are masqueraded for it."""
        source = self.question.source
        return tuple(one for one in self.backends if one.hairpin and one.address == source)


def judge(judged: Judged, reasons: tuple[str, ...]) -> Answer:
    """Make the answer; raise :class:`KernelError` if the packet did what the rows do not say."""
    backends, hairpins = judged.backends, judged.hairpins
    dnat = judged.verdict == "dnat"
    if dnat:
        _check(judged, backends, hairpins)
    everyone = judged.policy.masquerade or len(hairpins) == len(backends)
    return Answer(
        verdict=judged.verdict,
        endpoints=_texts(backends) if dnat else (),
        masquerade=dnat and everyone,
        masquerade_endpoints=_texts(hairpins) if dnat and not everyone else (),
        frontend=frontend_text(judged.frontend),
        service=f"{judged.owner.port.namespace}/{judged.owner.port.name}",
        reasons=reasons,
    )


def unowned(verdict: str, question: Question, owners: Mapping[Frontend, Programmed]) -> Answer:
    """Answer about an address and port that are nobody's."""
    guard = Frontend.rest(question.destination)
    owner = owners.get(guard)
    if verdict == "reject" and owner:
        return Answer(
            verdict=verdict,
            frontend=frontend_text(guard),
            service=f"{owner.port.namespace}/{owner.port.name}",
            reasons=("the cluster IP is in use, but no port of its Service is this one",),
        )
    if verdict == "drop":
        return Answer(
            verdict=verdict, reasons=("the address lies in a ServiceCIDR, but no Service has it",)
        )
    return Answer(verdict=verdict, reasons=("no Service has this address and port",))


def frontend_text(frontend: Frontend) -> str:
    """Name a frontend as the dump does."""
    address, port, protocol = frontend
    if (port, protocol) == (0, 0):
        return f"{unpack(address)} (any other port)"
    if address in _WILDCARDS:
        return f"nodeport:{port}/{PROTOCOL_NAMES[protocol]}"
    return f"{endpoint_text(address, port)}/{PROTOCOL_NAMES[protocol]}"


def _check(judged: Judged, backends: tuple[Backend, ...], hairpins: tuple[Backend, ...]) -> None:
    chosen = judged.chosen
    if chosen not in {one.place for one in backends}:
        raise KernelError(f"{endpoint_text(*chosen)} was chosen and is not eligible")
    if not judged.seen:
        return
    masqueraded = judged.policy.masquerade or chosen in {one.place for one in hairpins}
    if (judged.seen != judged.question.source) != masqueraded:
        raise KernelError(f"{endpoint_text(*chosen)} sees {unpack(judged.seen)} as its client")


def _texts(backends: tuple[Backend, ...]) -> tuple[str, ...]:
    return tuple(sorted({endpoint_text(*one.place) for one in backends}))
