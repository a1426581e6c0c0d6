"""Words for tests of rows: short ways to write objects, and to say what clients meet.

Objects are written as the API writes them and read by the real reader, so a test of a rule is
also a test of the field that carries it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bpfsvc.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    endpoint_text,
    family,
    pack,
    unpack,
)
from bpfsvc.desired import NodeContext, ServiceConfig
from bpfsvc.model import EndpointSlice, Service, read_object
from bpfsvc.rows import PROTOCOLS, Frontend, Policy, PortRows, ServiceRows

NODE = NodeContext("here", "zone-a")
CONFIG = ServiceConfig()
SERVICE_NAME = "kubernetes.io/service-name"

HTTP = {"name": "http", "port": 80}


def raw_service(
    name: str = "web",
    *,
    labels: Mapping[str, str] | None = None,
    ingress: tuple[Mapping[str, str], ...] = (),
    **spec: object,
) -> dict[str, object]:
    """Write a Service; the default is one port ``http`` on 10.96.0.1:80."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {"clusterIP": "10.96.0.1", "ports": [HTTP]} | spec,
        "status": {"loadBalancer": {"ingress": list(ingress)}},
    }


def service(name: str = "web", **parts: object) -> Service:
    """Make a Service as :func:`raw_service` writes it."""
    (made,) = read_object(raw_service(name, **parts))  # type: ignore[arg-type]
    assert isinstance(made, Service)
    return made


def endpoint(words: str) -> dict[str, object]:
    """Write an endpoint: ``10.0.0.1 here draining zone-a@ node-b#``.

    After the address comes the node (``-`` for none), then in any order: ``unready``,
    ``draining`` (terminating but serving), ``dead`` (terminating), ``leaving`` (ready, though
    terminating), zone hints ``a@``, node hints ``a#``.
    """
    address, node, *rest = words.split()
    conditions = {
        "unready": {"ready": False, "serving": False},
        "draining": {"ready": False, "serving": True, "terminating": True},
        "dead": {"ready": False, "serving": False, "terminating": True},
        "leaving": {"ready": True, "terminating": True},
    }
    made: dict[str, object] = {"addresses": [address], "conditions": {}}
    if node != "-":
        made["nodeName"] = node
    hints: dict[str, list[dict[str, str]]] = {"forZones": [], "forNodes": []}
    for word in rest:
        if word.endswith("@"):
            hints["forZones"].append({"name": word[:-1]})
        elif word.endswith("#"):
            hints["forNodes"].append({"name": word[:-1]})
        else:
            made["conditions"] = conditions[word]
    return made | {"hints": hints}


def raw_slice(
    *endpoints: str,
    of: str = "web",
    name: str = "web-1",
    ports: tuple[Mapping[str, object], ...] = ({"name": "http", "port": 8080},),
    labels: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Write a slice of a Service; the first endpoint says the family."""
    is_v6 = bool(endpoints) and ":" in endpoints[0].split()[0]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {SERVICE_NAME: of} | dict(labels or {}),
        },
        "addressType": "IPv6" if is_v6 else "IPv4",
        "ports": [dict(port) for port in ports],
        "endpoints": [endpoint(words) for words in endpoints],
    }


def endpoint_slice(*endpoints: str, **parts: object) -> EndpointSlice:
    """Make a slice as :func:`raw_slice` writes it."""
    (made,) = read_object(raw_slice(*endpoints, **parts))  # type: ignore[arg-type]
    assert isinstance(made, EndpointSlice)
    return made


def frontend(words: str) -> Frontend:
    """Make a frontend of ``10.96.0.1 80``, ``fd00::1 53 UDP`` or ``node4 30080``.

    ``10.96.0.1 rest`` is what no other frontend of the address takes.
    """
    address, port, *protocol = words.split()
    if port == "rest":
        return Frontend.rest(pack(address))
    wildcards = {"node4": ANY_NODE_ADDRESS_V4, "node6": ANY_NODE_ADDRESS_V6}
    packed = wildcards.get(address) or pack(address)
    return Frontend(packed, int(port), PROTOCOLS[protocol[0] if protocol else "TCP"])


def frontend_words(one: Frontend) -> str:
    """Say a frontend as :func:`frontend` reads it, without the protocol."""
    if one.address in (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6):
        return f"node{family(one.address)} {one.port}"
    if one == Frontend.rest(one.address):
        return f"{unpack(one.address)} rest"
    return f"{unpack(one.address)} {one.port}"


def answers(rows: ServiceRows, words: str) -> tuple[str, str, str]:
    """Say what a pod, this node and others meet at a frontend.

    ``to 10.0.0.1:80 10.0.0.2:80``, with `` masqueraded`` after it; ``refused``, ``silence``, or
    ``nothing`` where no row matches.
    """
    wanted = frontend(words)
    for port_rows in rows.values():
        if wanted in port_rows.frontends:
            pod, node, other = port_rows.frontends[wanted].by_class
            return _answer(port_rows, pod), _answer(port_rows, node), _answer(port_rows, other)
    return "nothing", "nothing", "nothing"


def _answer(rows: PortRows, policy: Policy) -> str:
    if not policy.size:
        return "refused" if policy.reject else "silence"
    picked = rows.backends[policy.first : policy.first + policy.size]
    assert len(picked) == policy.size, "the policy reaches beyond the backends"
    texts = " ".join(endpoint_text(*backend.place) for backend in picked)
    return f"to {texts}" + (" masqueraded" if policy.masquerade else "")
