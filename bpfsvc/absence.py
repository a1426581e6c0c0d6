"""Service ports that keep to endpoints of this node, and have none here though there are others.

Their traffic is dropped, which is as it should be and yet what people look for when packets do
not arrive. The rule is kube-proxy's, and so is its reach: a load balancer without an address yet
counts as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from bpfsvc.address import family
from bpfsvc.cluster import ServiceKey
from bpfsvc.desired import is_external_local
from bpfsvc.eligibility import eligible, in_order, merged
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.surroundings import NodeContext

Absent = Mapping[tuple[str, int], int]
"""Traffic policy (``internal``, ``external``) and family -> number of service ports."""

_NONE: Absent = {}
"""What nearly all Services have."""


def absent(service: Service | None, slices: Iterable[EndpointSlice], node: NodeContext) -> Absent:
    """Count the service ports of one Service whose clients find nobody on this node."""
    if service is None or not service.is_proxied:
        return _NONE
    policies = [
        name
        for name, is_local in (
            ("internal", service.internal_local),
            ("external", is_external_local(service)),
        )
        if is_local
    ]
    if not policies:
        return _NONE
    known = in_order(slices)
    found: Counter[tuple[str, int]] = Counter()
    for of_family in map(family, service.cluster_ips):
        for port in service.ports:
            cluster, local = eligible(merged(known, port, of_family), node)
            if cluster and not local:
                found.update((policy, of_family) for policy in policies)
    return found


class Absences:
    """The same for all Services, kept up to date one by one."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, Absent] = {}
        self._total: Counter[tuple[str, int]] = Counter()

    def update(
        self,
        key: ServiceKey,
        service: Service | None,
        slices: Iterable[EndpointSlice],
        node: NodeContext,
    ) -> None:
        """Take in what is known of a Service now."""
        self._total.subtract(self._of.pop(key, _NONE))
        now = absent(service, slices, node)
        if now:
            self._of[key] = now
            self._total.update(now)

    def counts(self) -> dict[tuple[str, int], int]:
        """Give the numbers for both policies and families, zeros included."""
        return {
            (policy, of_family): self._total[policy, of_family]
            for policy in ("internal", "external")
            for of_family in (4, 6)
        }
