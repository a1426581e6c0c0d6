"""What a plan changes, Service by Service: what came and what went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import ServicePort, frontend_text
from bpfsvc.services.plans.applied import Applied, AppliedState

ADDED, REMOVED, CHANGED = "added", "removed", "changed"


class Difference(NamedTuple):
    """Names that are new, and names that are gone, both sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


class ServiceChange(NamedTuple):
    """The change of one Service. ``what``: added, removed or changed."""

    service: ServiceKey
    what: str
    endpoints: Difference
    frontends: Difference


def service_changes(
    changes: Mapping[ServicePort, Applied | None], applied: AppliedState
) -> Iterator[ServiceChange]:
    """Yield the change of each Service in ``changes``, which has the state of ports afterwards.

    ``applied`` is the state before.
    """
    for service, ports in groupby(sorted(changes), key=lambda port: (port.namespace, port.name)):
        before = applied.of(service)
        after = before | {port: changes[port] for port in ports}
        old, new = list(before.values()), [state for state in after.values() if state is not None]
        what = CHANGED if old and new else ADDED if new else REMOVED
        yield ServiceChange(
            service,
            what,
            _difference(_endpoints(old), _endpoints(new)),
            _difference(_frontends(old), _frontends(new)),
        )


def _difference(before: set[str], after: set[str]) -> Difference:
    return Difference(tuple(sorted(after - before)), tuple(sorted(before - after)))


def _endpoints(ports: Iterable[Applied]) -> set[str]:
    return {endpoint_text(*address) for applied in ports for address in applied.counters()}


def _frontends(ports: Iterable[Applied]) -> set[str]:
    """Return the frontends as text, without the guards of cluster IPs."""
    frontends = (frontend for applied in ports for frontend in applied.frontends())
    return {frontend_text(frontend) for frontend in frontends if frontend.port}
