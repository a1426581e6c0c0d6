"""What failed lately on this node, as its agent says: it keeps the counts of the last minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.inspect.agent_questions import ask_agent
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.model.answers import BackendFailures, FailureAnswer
from bpfsvc.services.plans.registry import BACKENDS

_SHOWN = 3
"""How many Services a line names."""

REASONS = ("refused", "unanswered", "unreachable")
"""Why connections failed: fields of an answer, and words for people."""


@dataclass(frozen=True, slots=True)
class FailingBackend:
    """A backend at fault: its address as text, and connections by what became of them."""

    backend: str
    connections: int
    refused: int
    unanswered: int
    unreachable: int

    @property
    def failed(self) -> int:
        """Connections that failed."""
        return self.refused + self.unanswered + self.unreachable

    @property
    def reason(self) -> str:
        """The most frequent reason."""
        return max(REASONS, key=lambda reason: int(getattr(self, reason)))


@dataclass(frozen=True, slots=True)
class CarriedService:
    """A service port of which something failed lately.

    * ``failing``: its backends at fault; ``backends``: how many it has.
    * ``refused``: what was refused by the programs themselves, by ``action__reason``.
    """

    service: str
    backends: int
    failing: tuple[FailingBackend, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Carried:
    """The health of what the node carries, in the last ``seconds``."""

    seconds: int
    services: tuple[CarriedService, ...] = ()


def carried_text(known: Carried | None, services: int) -> str:
    """Return the health of what is carried as one line, with the command that says more.

    ``services``: how many Services there are.
    """
    if known is None:
        return "not known: no agent of this version answers"
    failing = [carried for carried in known.services if carried.failing]
    refusing = [carried for carried in known.services if carried.refused]
    parts = []
    if failing:
        has = "has" if len(failing) == 1 else "have"
        texts = list_text([_failing_text(carried) for carried in failing], _SHOWN)
        parts.append(
            f"{count_text(len(failing), 'service port')} of {count_text(services, 'Service')} {has}"
            f" failing backends: {texts}; see: bpfsvc services {_name(failing[0])}"
        )
    if refusing:
        texts = list_text([_refused_text(carried) for carried in refusing], _SHOWN)
        refuses = "refuses" if len(refusing) == 1 else "refuse"
        parts.append(
            f"{count_text(len(refusing), 'service port')} {refuses} clients: {texts};"
            f" see: bpfsvc services {_name(refusing[0])}"
        )
    lately = f"in the last {known.seconds} s"
    return f"FAILURES {lately}: {'; '.join(parts)}" if parts else f"no failing backend {lately}"


def _name(carried: CarriedService) -> str:
    """Return the Service as commands take it; ids without a name are no argument."""
    return carried.service.rpartition(":")[0]


def _failing_text(carried: CarriedService) -> str:
    failed = sum(backend.failed for backend in carried.failing)
    of = sum(backend.connections for backend in carried.failing)
    reasons = dict.fromkeys(backend.reason for backend in carried.failing)
    return (
        f"{carried.service} ({len(carried.failing)} of {count_text(carried.backends, 'backend')}:"
        f" {failed} of {count_text(of, 'connection')} {' or '.join(reasons)})"
    )


def _refused_text(carried: CarriedService) -> str:
    texts = [refusal_text(name, count) for name, count in carried.refused.items()]
    return f"{carried.service} ({', '.join(texts)})"


def refusal_text(name: str, count: int) -> str:
    """Return ``12 rejected: no endpoints`` for a count of ``rejected__no_endpoints``."""
    action, _, reason = name.partition("__")
    return f"{count} {action}: {reason.replace('_', ' ')}"


def ask_failures(pin_root: Path) -> FailureAnswer | None:
    """Return what the agent of ``pin_root`` says; None without one that can tell."""
    return ask_agent(pin_root, "/failures?namespace=&name=", FailureAnswer)


def carried(reader: Reader, answer: FailureAnswer) -> Carried:
    """Return an answer by the names of Services; most often nothing has failed."""
    failing = {failure.counters: failure for failure in answer.backends if failure.failing}
    refused = {refusal.service: refusal.counts for refusal in answer.refusals}
    if not failing and not refused:
        return Carried(answer.seconds)
    return Carried(answer.seconds, tuple(_services(reader, failing, refused)))


def _services(
    reader: Reader, failing: Mapping[int, BackendFailures], refused: Mapping[int, dict[str, int]]
) -> Iterator[CarriedService]:
    names = ServiceNames(reader)
    backends: dict[int, dict[int, str]] = {}
    for entry in EntryReader(reader).read(BACKENDS):
        text = endpoint_text(entry.address, entry.port)
        backends.setdefault(entry.service_id, {})[entry.counters_id] = text
    at_fault = {service for service, known in backends.items() if failing.keys() & known.keys()}
    for service in sorted(at_fault | refused.keys(), key=names.__getitem__):
        known = backends.get(service, {})
        yield CarriedService(
            names[service],
            len(known),
            tuple(
                _failing(known[counters], failing[counters])
                for counters in sorted(failing.keys() & known.keys())
            ),
            refused.get(service, {}),
        )


def _failing(text: str, failure: BackendFailures) -> FailingBackend:
    return FailingBackend(
        text,
        failure.connections,
        *(getattr(failure, reason) for reason in REASONS),
    )
