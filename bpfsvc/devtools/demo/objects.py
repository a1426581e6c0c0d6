"""The objects of the demonstration, and names for their addresses and ports.

The Services are in ``manifests``: ``classics.yaml`` holds Services of the Kubernetes
literature, as written there; ``web.yaml`` adds: two address families, UDP and a load balancer's
addresses. EndpointSlices are made as a controller does it, for pods that come and go. A pod is a
backend of several Services, with a port for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bpfsvc.devtools.lab.dial import Protocol
from bpfsvc.devtools.lab.objects import Object, port, slices
from bpfsvc.devtools.lab.pod import LabPod

MANIFESTS = Path(__file__).parent / "manifests"

NGINX_PODS = {"nginx-1": "10.244.1.5", "nginx-2": "10.244.2.4"}
SVC_A_POD = ("pod-a", "101.76.9.141")


class Target(NamedTuple):
    """An address and a port that a client asks."""

    address: str
    port: int
    protocol: Protocol = "tcp"

    @property
    def endpoint(self) -> str:
        """As sockets print it: ``10.0.0.1:80``, ``[fd00::1]:80``."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.endpoint + ("/udp" if self.protocol == "udp" else "")


NGINX = Target("10.107.33.105", 80)
SVC_A = Target("10.233.56.44", 80)
HOSTNAMES = Target("10.111.231.44", 80)
MY_SERVICE = Target("10.96.14.2", 80)
WEB_V6 = Target("fd96::10", 80)
DNS, DNS_V6 = Target("10.96.0.10", 53, "udp"), Target("fd96::10", 53, "udp")
EXTERNAL = (Target("80.11.12.10", 80), Target("203.0.113.10", 80), Target("2001:db8::10", 80))
NGINX_NODEPORT, HOSTNAMES_NODEPORT, WEB_NODEPORT, DNS_NODEPORT = 30007, 30000, 30080, 30053

HTTP_PORT, APP_PORT = 80, 9376

_BACKENDS = {
    "nginx-service": [port(HTTP_PORT)],
    "hostnames": [port(APP_PORT, "http")],
    "my-service": [port(APP_PORT, "http")],
    "web": [port(APP_PORT, "http"), port(APP_PORT, "dns", "UDP")],
}


def manifests() -> dict[str, str]:
    """Return the hand-written manifests, by file name."""
    return {file.name: file.read_text() for file in sorted(MANIFESTS.glob("*.yaml"))}


def endpoint_slices(service: str, pods: Sequence[LabPod]) -> list[Object]:
    """Return the EndpointSlices of a Service; only ``web`` has IPv6 addresses."""
    made = slices(service, pods, _BACKENDS[service])
    return (
        made
        if service == "web"
        else [endpoint_slice for endpoint_slice in made if endpoint_slice["addressType"] == "IPv4"]
    )


WITH_SLICES = tuple(_BACKENDS)
"""Services with EndpointSlices; svc-a has a classic Endpoints object."""
