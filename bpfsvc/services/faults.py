"""Faults of Services: addresses that are refused, or that belong to another Service, annotations
that cannot be used, and values that are not known here.

Only Services with a fault are remembered, and only new or changed faults are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.base.texts import list_text
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Frontend, frontend_text
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.frontend_ownership import FrontendOwnership
from bpfsvc.services.rules.refused_addresses import refusals

_SHOWN = 3
"""How many frontends of one Service a text names."""

REFUSED, TAKEN, BAD_SCHEDULER = "AddressRefused", "AddressInUse", "BadScheduler"
UNKNOWN = "UnknownValue"
"""Reasons: the address of a Service is refused; another Service has it; the annotations that say
how a backend is chosen and left cannot be used; a field has a value that is not known here."""

_NOTED = {"schedulers": BAD_SCHEDULER, "unknown values": UNKNOWN}
"""Reasons that are notes of /healthz, by the subjects of the notes."""


class Fault(NamedTuple):
    """What a Service does not get, with the reason and a text for people."""

    service: ServiceKey
    reason: str
    text: str


class FaultReport:
    """Finds the new faults among the faults of all Services."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._known: dict[str, dict[ServiceKey, str]] = {
            reason: {} for reason in (REFUSED, TAKEN, BAD_SCHEDULER, UNKNOWN)
        }
        self._changes = 0

    def update(self, touched: Iterable[ServiceKey]) -> list[Fault]:
        """Return the faults that were not there, or were others, at the last call.

        ``touched``: the Services that have been planned since then.
        """
        refused, unusable = dict(self._known[REFUSED]), dict(self._known[BAD_SCHEDULER])
        unknown = dict(self._known[UNKNOWN])
        for key in touched:
            _set(refused, key, self._refused(key))
            _set(unusable, key, self._planner.schedulings.fault(key))
            _set(unknown, key, self._unknown(key))
        taken = self._known[TAKEN]
        ownership = self._planner.ownership
        if self._changes != ownership.changes:
            self._changes = ownership.changes
            taken = _by_loser(ownership)
        now = {REFUSED: refused, TAKEN: taken, BAD_SCHEDULER: unusable, UNKNOWN: unknown}
        return [fault for reason, texts in now.items() for fault in self._new(reason, texts)]

    def notes(self) -> dict[str, str]:
        """Return by subject which Services have such a fault now; "" for none."""
        return {subject: self._note(self._known[reason]) for subject, reason in _NOTED.items()}

    @staticmethod
    def _note(known: Mapping[ServiceKey, str]) -> str:
        return list_text([f"Service {'/'.join(key)}: {known[key]}" for key in sorted(known)], 1)

    def _new(self, reason: str, now: dict[ServiceKey, str]) -> Iterator[Fault]:
        before, self._known[reason] = self._known[reason], now
        for key, text in now.items():
            if before.get(key) != text:
                yield Fault(key, reason, text)

    def _refused(self, key: ServiceKey) -> str:
        service = self._planner.cache.lookup(key).service
        if service is None or not (service.external_ips or service.load_balancer_ips):
            return ""
        return "; ".join(refusals(service)) if service.is_proxied else ""

    def _unknown(self, key: ServiceKey) -> str:
        service, slices = self._planner.cache.lookup(key)
        if service is None or service.proxied_elsewhere:
            return ""
        texts = list(service.unknown_values)
        for part in slices:
            texts += (f"{part.kind} {part.name}: {text}" for text in part.unknown_values)
        return list_text(texts, _SHOWN, "; ")


def _set(texts: dict[ServiceKey, str], key: ServiceKey, text: str) -> None:
    if text:
        texts[key] = text
    else:
        texts.pop(key, None)


def losers(ownership: FrontendOwnership, frontend: Frontend) -> Iterator[str]:
    """Yield a text for each Service that names a frontend and does not get it."""
    for key in ownership.others(frontend):
        yield f"{'/'.join(key)} names it too, without effect: {ownership.why(frontend, key)}"


def _by_loser(ownership: FrontendOwnership) -> dict[ServiceKey, str]:
    """Return for each Service the frontends that it does not get, as a text."""
    texts_of: dict[ServiceKey, list[str]] = {}
    for frontend, (owner, others) in sorted(ownership.lost().items()):
        for key in others:
            why = ownership.why(frontend, key)
            text = f"{frontend_text(frontend)} belongs to {'/'.join(owner)}: {why}"
            texts_of.setdefault(key, []).append(text)
    return {key: list_text(all_texts, _SHOWN) for key, all_texts in texts_of.items()}
