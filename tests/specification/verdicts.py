"""What happens to the first packet of a connection (section 4)."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.specification import masquerade
from tests.specification.addresses import Network, parse_network
from tests.specification.affinity import affinity_seconds
from tests.specification.clients import (
    HOST,
    destination,
    is_assigned,
    is_from_node_address,
    is_local_pod,
)
from tests.specification.eligibility import cluster_set, is_usable_anywhere, local_set
from tests.specification.endpoints import Endpoint, has_contradictions
from tests.specification.frontends import CLUSTER_IP, Frontend, is_disputed, matching
from tests.specification.objects import (
    Raw,
    ServicePort,
    is_external_local,
    is_internal_local,
    service_key,
    service_ports,
)
from tests.specification.ranges import is_forbidden


class Verdict(NamedTuple):
    """The answer for a flow.

    * ``verdict``: ``dnat``, ``reject``, ``drop`` or ``none``.
    * ``endpoints``: all eligible backends as ``ip:port``, sorted by that text.
    * ``masquerade``: every one of them sees an address of this node; if only some do, it is false
      and ``masquerade_endpoints`` names them.
    * ``rule``: the row of the catalogue that decided, for people.
    * ``table_masquerade``: what the table of section 6.2 says but for its last row, hairpins.
    * ``frontend`` and ``service``: what matched, as ``VIP`` and ``ns1/svc1``.
    * ``affinity_seconds``: 0 without session affinity.
    * ``unspecified``: why the catalogue leaves the answer open; empty if it does not.
    """

    verdict: str
    endpoints: tuple[str, ...]
    masquerade: bool
    masquerade_endpoints: tuple[str, ...]
    rule: str
    table_masquerade: bool = False
    frontend: str | None = None
    service: str | None = None
    affinity_seconds: int = 0
    unspecified: tuple[str, ...] = ()

    def as_expected(self) -> dict[str, Any]:
        """Return it as ``expect`` of a flow."""
        expect: dict[str, Any] = {
            "verdict": self.verdict,
            "endpoints": list(self.endpoints),
            "masquerade": self.masquerade,
        }
        if self.masquerade_endpoints:
            expect["masquerade_endpoints"] = list(self.masquerade_endpoints)
        return expect


class Decision(NamedTuple):
    """A row of a table: ``eligible`` is empty unless the verdict is ``dnat``."""

    rule: str
    verdict: str
    eligible: list[Endpoint]


def evaluate(case: Raw, flow: Raw) -> Verdict:
    """Sections 4 to 6, in the order in which a packet meets them."""
    claims = matching(case, flow)
    if not claims:
        rule, verdict = untranslated(case, flow)
        return Verdict(verdict, (), False, (), rule)
    frontend = claims[0]
    if is_forbidden(case, flow, claims):
        decision = Decision("5 source not in range", "drop", [])
    elif frontend.kind == CLUSTER_IP:
        decision = at_cluster_ip(case, frontend.port)
    elif is_external_local(frontend.port):
        decision = at_external_local(case, flow, frontend.port)
    else:
        decision = at_external_cluster(case, frontend.port)
    return _verdict(case, flow, claims, decision)


def at_cluster_ip(case: Raw, port: ServicePort) -> Decision:
    """Section 4.1: eTP never matters here."""
    if not is_usable_anywhere(case, port):
        return Decision("4.1 not H", "reject", [])
    if not is_internal_local(port):
        return Decision("4.1 iTP Cluster", "dnat", cluster_set(case, port))
    if local_set(case, port):
        return Decision("4.1 iTP Local", "dnat", local_set(case, port))
    return Decision("4.1 iTP Local, L empty", "drop", [])


def at_external_cluster(case: Raw, port: ServicePort) -> Decision:
    """Section 4.2: iTP never matters here."""
    if not is_usable_anywhere(case, port):
        return Decision("4.2 not H", "reject", [])
    return Decision("4.2 eTP Cluster", "dnat", cluster_set(case, port))


def at_external_local(case: Raw, flow: Raw, port: ServicePort) -> Decision:
    """Section 4.3, whose order matters."""
    if not is_usable_anywhere(case, port):
        return Decision("4.3 not H", "reject", [])
    if is_local_pod(case, flow):
        return Decision("4.3 local pod", "dnat", cluster_set(case, port))
    if is_from_node_address(case, flow):
        return Decision("4.3 node address", "dnat", cluster_set(case, port))
    if local_set(case, port):
        return Decision("4.3 anyone else", "dnat", local_set(case, port))
    return Decision("4.3 anyone else, L empty", "drop", [])


def untranslated(case: Raw, flow: Raw) -> tuple[str, str]:
    """Sections 4.6 and 4.8: what matches no frontend; enforced on forwarded and host packets."""
    is_delivered_here = is_assigned(case, destination(flow)) and flow["from"] not in HOST
    if not is_delivered_here:
        if any(port.cluster_ip == destination(flow) for port in service_ports(case)):
            return "4.6 undefined port", "reject"
        if any(destination(flow) in cidr for cidr in service_cidrs(case)):
            return "4.6 unallocated", "drop"
    return "4.8 no frontend", "none"


def service_cidrs(case: Raw) -> list[Network]:
    """Section 1.1: the union of all ServiceCIDRs."""
    parsed = [parse_network(text) for text in case.get("service_cidrs") or []]
    return [one for one in parsed if one]


def _verdict(case: Raw, flow: Raw, claims: list[Frontend], decision: Decision) -> Verdict:
    frontend = claims[0]
    if frontend.kind == CLUSTER_IP:
        by_table = masquerade.for_cluster_ip(case, flow)
    else:
        by_table = masquerade.for_external(
            case, flow, local_policy=is_external_local(frontend.port)
        )
    eligible = decision.eligible
    seen = masquerade.masqueraded(case, flow, eligible, by_table=by_table)
    every = bool(eligible) and len(seen) == len(eligible)
    unspecified = {
        "the frontend is claimed twice": is_disputed(claims),
        "duplicate endpoints contradict": has_contradictions(case, frontend.port),
    }
    return Verdict(
        verdict=decision.verdict,
        endpoints=tuple(one.text for one in eligible),
        masquerade=every,
        masquerade_endpoints=() if every else tuple(one.text for one in seen),
        rule=decision.rule,
        table_masquerade=bool(eligible) and by_table,
        frontend=frontend.kind,
        service="/".join(service_key(frontend.port.service)),
        affinity_seconds=affinity_seconds(frontend.port.service),
        unspecified=tuple(reason for reason, is_so in unspecified.items() if is_so),
    )
