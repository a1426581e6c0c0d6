"""Values of enumerations that this version does not know.

The API's conventions ask clients to expect new values. As in kube-proxy, an unknown value means the
default; without a default, the port or address that has the value is left out, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.model import wire

VIP = "VIP"

FAMILIES = {"IPv4": 4, "IPv6": 6}

_IP_MODES = (VIP, "Proxy")
_POLICIES = ("Cluster", "Local")
_AFFINITIES = ("None", "ClientIP")

Port = wire.ServicePort | wire.SlicePort | wire.SubsetPort


def has_known_protocol(port: Port) -> bool:
    """True for a port of a protocol that is served; TCP is the default."""
    return not port.protocol or port.protocol in PROTOCOLS


def of_service(spec: wire.ServiceSpec, ingress: Sequence[wire.Ingress]) -> Iterator[str]:
    """Yield a text for each unknown value of a Service."""
    fields = (
        ("internalTrafficPolicy", spec.internal_traffic_policy, _POLICIES),
        ("externalTrafficPolicy", spec.external_traffic_policy, _POLICIES),
        ("sessionAffinity", spec.session_affinity, _AFFINITIES),
    )
    for name, value, known in fields:
        if value and value not in known:
            yield _text(f"spec.{name}", value, f"it counts as {known[0]}")
    for number, wanted in enumerate(spec.ip_families or ()):
        if wanted not in FAMILIES:
            yield _text(f"spec.ipFamilies[{number}]", wanted, "its cluster IP is left out")
    yield from of_ports("spec.ports", spec.ports or ())
    for number, entry in enumerate(ingress):
        if entry.ip and entry.ip_mode and entry.ip_mode not in _IP_MODES:
            path = f"status.loadBalancer.ingress[{number}].ipMode"
            yield _text(path, entry.ip_mode, "this address is left out")


def of_ports(path: str, ports: Iterable[Port]) -> Iterator[str]:
    """Yield a text for each port, in the list at ``path``, with an unknown protocol."""
    for number, port in enumerate(ports):
        if not has_known_protocol(port):
            yield _text(f"{path}[{number}].protocol", port.protocol, "this port is left out")


def _text(path: str, value: str | None, effect: str) -> str:
    return f"{path}: {value!r} is unknown here, so {effect}"
