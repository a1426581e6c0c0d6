"""What a healthCheckNodePort answers (section 8)."""

from __future__ import annotations

from typing import NamedTuple

from tests.specification.endpoints import endpoints
from tests.specification.objects import Raw, is_external_local, service_key, service_ports


class HealthCheck(NamedTuple):
    """One listener: its port, and what it answers while the proxy itself is healthy."""

    port: int
    http_status: int
    local_endpoints: int


def health_checks(case: Raw, family: int) -> dict[str, HealthCheck]:
    """Section 8: by ``namespace/name``, for load balancers with eTP Local and a port for it."""
    found = {}
    for port in service_ports(case):
        spec = port.service["spec"]
        number = spec.get("healthCheckNodePort") or 0
        wanted = spec.get("type") == "LoadBalancer" and is_external_local(port) and number
        if wanted and port.family == family:
            count = local_ready_addresses(case, port.service, family)
            name = "/".join(service_key(port.service))
            found[name] = HealthCheck(number, 200 if count else 503, count)
    return found


def local_ready_addresses(case: Raw, service: Raw, family: int) -> int:
    """Section 8: distinct addresses over all ports; draining endpoints do not count."""
    ports = [
        port for port in service_ports(case) if port.service is service and port.family == family
    ]
    return len(
        {
            one.address
            for port in ports
            for one in endpoints(case, port)
            if one.is_local and one.ready
        }
    )
