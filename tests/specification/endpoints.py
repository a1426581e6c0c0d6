"""The endpoints of a service port, united from slices (sections 1.4 and 1.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.specification.addresses import Address, parse_address, socket_text
from tests.specification.objects import FAMILY_NAMES, Raw, ServicePort, labels, service_key


class Endpoint(NamedTuple):
    """One address and port, and what its slice says about it."""

    address: Address
    port: int
    is_local: bool
    ready: bool
    serving: bool
    terminating: bool
    zones: frozenset[str]
    nodes: frozenset[str]

    @property
    def text(self) -> str:
        """``ip:port``."""
        return socket_text(self.address, self.port)

    @property
    def draining(self) -> bool:
        """Serving and terminating, not ready."""
        return self.serving and self.terminating and not self.ready


def node_name(case: Raw) -> str:
    """Section 13: trimmed and in lower case."""
    return str(case["node"]["name"]).strip().lower()


def slices(case: Raw, port: ServicePort) -> list[Raw]:
    """Sections 1.1 and 1.4: the slices of a Service in the family of a service port, by name."""
    found = [
        one
        for one in case["endpointslices"]
        if "service.kubernetes.io/headless" not in labels(one)
        and one.get("addressType") == FAMILY_NAMES[port.family]
        and (one["metadata"].get("namespace"), labels(one).get("kubernetes.io/service-name"))
        == service_key(port.service)
    ]
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


def records(case: Raw, port: ServicePort) -> Iterator[Endpoint]:
    """Section 1.4: every endpoint every slice names for the port, one after another."""
    for one in slices(case, port):
        for slice_port in one.get("ports") or []:
            if _is_for(slice_port, port):
                for raw in one.get("endpoints") or []:
                    if raw.get("addresses"):
                        yield _endpoint(case, raw, int(slice_port["port"]))


def endpoints(case: Raw, port: ServicePort) -> list[Endpoint]:
    """Section 1.4: of duplicates the best is used; by ``ip:port``."""
    stored: dict[str, Endpoint] = {}
    for record in records(case, port):
        stored[record.text] = max(record, stored.get(record.text, record), key=_goodness)
    return [stored[text] for text in sorted(stored)]


def _goodness(record: Endpoint) -> int:
    """Section 1.4: ready, else neither ready nor terminating, else serving."""
    staying = 2 if not record.terminating else 0
    return (4 if record.ready else 0) + staying + (1 if record.serving else 0)


def has_contradictions(case: Raw, port: ServicePort) -> bool:
    """Section 1.4: True if it is unspecified which of some duplicates is taken."""
    found = list(records(case, port))
    for text in {record.text for record in found}:
        same = [record for record in found if record.text == text]
        best = max(map(_goodness, same))
        if len({record for record in same if _goodness(record) == best}) > 1:
            return True
    return False


def _is_for(slice_port: Raw, port: ServicePort) -> bool:
    """Section 1.4: a port without a number is ignored; name and protocol match exactly."""
    if not slice_port.get("port"):
        return False
    name, protocol = slice_port.get("name") or "", slice_port.get("protocol") or "TCP"
    return bool((name, protocol) == (port.name, port.protocol))


def _endpoint(case: Raw, raw: Raw, number: int) -> Endpoint:
    """Section 1.5: unset ready and serving are true, unset terminating is false."""
    address = parse_address(raw["addresses"][0])
    assert address is not None, "an endpoint without a readable address"
    conditions = raw.get("conditions") or {}
    hints = raw.get("hints") or {}
    return Endpoint(
        address=address,
        port=number,
        is_local=raw.get("nodeName") == node_name(case),
        ready=_condition(conditions, "ready", unset=True),
        serving=_condition(conditions, "serving", unset=True),
        terminating=_condition(conditions, "terminating", unset=False),
        zones=frozenset(hint["name"] for hint in hints.get("forZones") or []),
        nodes=frozenset(hint["name"] for hint in hints.get("forNodes") or []),
    )


def _condition(conditions: Raw, name: str, *, unset: bool) -> bool:
    value = conditions.get(name)
    return unset if value is None else bool(value)
