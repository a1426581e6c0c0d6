"""One line for each Service that a plan changes, from ``-v 2`` on: what came and what went."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.texts import list_text
from bpfsvc.services.entries import ServicePort, frontend_text
from bpfsvc.services.plans.applied import Applied, AppliedState
from bpfsvc.services.plans.plan import Plan

LOGGER = "bpfsvc.changes"
"""A logger with its own level: ten thousand Services are ten thousand lines at the start."""

_log = logging.getLogger(LOGGER)

_SHOWN = 8
"""Endpoints and frontends that a line names; the others are only counted."""


def log_changes(plan: Plan, applied: AppliedState) -> None:
    """Log what ``plan`` changed; ``applied`` is the state before."""
    if _log.isEnabledFor(logging.INFO):
        for line in change_lines(plan.applied, applied):
            _log.info("%s", line)


def change_lines(
    changes: Mapping[ServicePort, Applied | None], applied: AppliedState
) -> Iterator[str]:
    """Yield a line for each Service in ``changes``, which has the state of ports afterwards."""
    for key, ports in groupby(sorted(changes), key=lambda port: (port.namespace, port.name)):
        before = applied.of(key)
        after = before | {port: changes[port] for port in ports}
        yield f"Service {'/'.join(key)}: " + _change_text(
            list(before.values()), [port for port in after.values() if port is not None]
        )


def _change_text(before: list[Applied], after: list[Applied]) -> str:
    parts = [
        _difference(_endpoints(before), _endpoints(after), "endpoint"),
        _difference(_frontends(before), _frontends(after), "frontend"),
    ]
    if not before:
        parts.insert(0, "added")
    elif not after:
        parts.insert(0, "removed")
    return "; ".join(filter(None, parts)) or "policies changed"


def _difference(before: set[str], after: set[str], noun: str) -> str:
    """Return ``+1 -1 endpoints [+10.0.0.1:80 -10.0.0.2:80]``; "" if nothing differs."""
    came, went = sorted(after - before), sorted(before - after)
    signed = [f"+{name}" for name in came] + [f"-{name}" for name in went]
    if not signed:
        return ""
    counts = [f"+{len(came)}"] * bool(came) + [f"-{len(went)}"] * bool(went)
    plural = "" if len(signed) == 1 else "s"
    return f"{' '.join(counts)} {noun}{plural} [{list_text(signed, _SHOWN, ' ')}]"


def _endpoints(ports: Iterable[Applied]) -> set[str]:
    return {endpoint_text(*address) for applied in ports for address in applied.counters()}


def _frontends(ports: Iterable[Applied]) -> set[str]:
    """Return the frontends as text, without the guards of cluster IPs."""
    frontends = (frontend for applied in ports for frontend in applied.frontends())
    return {frontend_text(frontend) for frontend in frontends if frontend.port}
