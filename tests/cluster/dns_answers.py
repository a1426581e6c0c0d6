"""What a cluster's DNS answers: https://github.com/kubernetes/dns, docs/specification.md.

As much of it as the e2e tests of Services ask for: A and AAAA of Services and of the hostnames of
headless ones, CNAME of external names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, A, DNSRecord

Object = dict[str, Any]

DOMAIN = "cluster.local"
_SUFFIX = f".svc.{DOMAIN}"
_TTL = 5
_LONGEST_CHAIN = 5  # external names that name another one
_HEADLESS = "None"


class Zone:
    """Answers from objects: a look-up of a Service by namespace and name, and of its slices."""

    def __init__(
        self,
        service: Callable[[str, str], Object | None],
        slices: Callable[[str, str], Iterable[Object]],
    ) -> None:
        self._service = service
        self._slices = slices

    def reply(self, query: DNSRecord) -> DNSRecord:
        """Return the reply to a query; NXDOMAIN for all that is outside of the cluster."""
        reply = query.reply()
        records = self.records(str(query.q.qname), QTYPE[query.q.qtype])
        if records is None:
            reply.header.rcode = RCODE.NXDOMAIN
        reply.add_answer(*(records or ()))
        return reply

    def records(self, name: str, kind: str, depth: int = 0) -> list[RR] | None:
        """Return the records of a kind that a name has, or None if there is no such name."""
        lower = name.rstrip(".").lower()
        labels = lower.removesuffix(_SUFFIX).split(".")
        if not lower.endswith(_SUFFIX) or not 2 <= len(labels) <= 3:
            return None
        *hosts, service_name, namespace = labels
        service = self._service(namespace, service_name)
        if service is None:
            return None
        spec = service["spec"]
        if spec.get("type") == "ExternalName":
            return self._external(name, kind, spec["externalName"], depth)
        if spec.get("clusterIP") != _HEADLESS:
            return None if hosts else _addresses(name, kind, spec.get("clusterIPs", []))
        slices = self._slices(namespace, service_name)
        even_unready = bool(spec.get("publishNotReadyAddresses"))
        return _headless(name, kind, hosts[0] if hosts else None, slices, even_unready)

    def _external(self, name: str, kind: str, target: str, depth: int) -> list[RR]:
        alias = RR(name, QTYPE.CNAME, rdata=CNAME(target), ttl=_TTL)
        more = self.records(target, kind, depth + 1) if depth < _LONGEST_CHAIN else None
        return [alias, *(more or ())]


def _headless(
    name: str, kind: str, host: str | None, slices: Iterable[Object], even_unready: bool
) -> list[RR] | None:
    seen = [
        endpoint
        for slice_ in slices
        for endpoint in slice_.get("endpoints") or ()
        if even_unready or endpoint.get("conditions", {}).get("ready", True)
        if host is None or endpoint.get("hostname") == host
    ]
    if host is not None and not seen:
        return None
    return _addresses(name, kind, [text for entry in seen for text in entry["addresses"]])


def _addresses(name: str, kind: str, texts: Iterable[str]) -> list[RR]:
    version, data = {"A": (4, A), "AAAA": (6, AAAA)}.get(kind, (0, A))
    wanted = dict.fromkeys(text for text in texts if ip_address(text).version == version)
    return [RR(name, getattr(QTYPE, kind), rdata=data(text), ttl=_TTL) for text in wanted]
