"""Short ways for tests to write objects, and to read what clients meet.

Objects are written as the API writes them and read by the real reader, so a test of a rule is
also a test of the field that carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bpfsvc.base.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    endpoint_text,
    family,
    pack,
    unpack,
)
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.devtools.lab import objects
from bpfsvc.model import EndpointSlice, Service, read_object
from bpfsvc.services.entries import Frontend, Policy, PortEntries, ServiceEntries
from bpfsvc.services.rules.context import NodeContext, ServiceConfig

NODE = NodeContext("here", "zone-a")
CONFIG = ServiceConfig()

HTTP = {"name": "http", "port": 80}


def raw_service(
    name: str = "web",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ingress: tuple[Mapping[str, str], ...] = (),
    created: str = "",
    **spec: object,
) -> dict[str, object]:
    """Return a raw Service; the default is one port ``http`` on 10.96.0.1:80."""
    fields: dict[str, Any] = {"clusterIP": "10.96.0.1", "ports": [HTTP]} | spec
    return objects.service(
        name,
        (),
        labels=labels,
        annotations=annotations,
        ingress=ingress,
        created=created,
        **fields,
    )


def service(name: str = "web", **parts: object) -> Service:
    """Return the Service of :func:`raw_service`."""
    (made,) = read_object(raw_service(name, **parts))  # type: ignore[arg-type]
    assert isinstance(made, Service)
    return made


def endpoint(words: str) -> dict[str, object]:
    """Return a raw endpoint of a text like ``10.0.0.1 here draining zone-a@ node-b#``.

    After the address comes the node (``-`` for none), then in any order: ``unready``,
    ``draining`` (terminating but serving), ``dead`` (terminating), ``leaving`` (ready, though
    terminating), zone hints ``a@``, node hints ``a#``, its own zone ``in:a``.
    """
    address, node, *rest = words.split()
    states = {
        "unready": {"ready": False, "serving": False},
        "draining": {"ready": False, "serving": True, "terminating": True},
        "dead": {"ready": False, "serving": False, "terminating": True},
        "leaving": {"ready": True, "terminating": True},
    }
    conditions: dict[str, bool] = {}
    hints: dict[str, list[dict[str, str]]] = {"forZones": [], "forNodes": []}
    zone: dict[str, str] = {}
    for word in rest:
        if word.endswith("@"):
            hints["forZones"].append({"name": word[:-1]})
        elif word.endswith("#"):
            hints["forNodes"].append({"name": word[:-1]})
        elif word.startswith("in:"):
            zone = {"zone": word.removeprefix("in:")}
        else:
            conditions = states[word]
    made = objects.endpoint(address, "" if node == "-" else node, **conditions)
    return made | {"hints": hints} | zone


def raw_slice(
    *endpoints: str,
    of: str = "web",
    name: str = "web-1",
    ports: tuple[Mapping[str, object], ...] = ({"name": "http", "port": 8080},),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return a raw slice of a Service; the first endpoint decides the family."""
    written = [endpoint(words) for words in endpoints]
    return objects.endpoint_slice(
        of, written, ports, name=name, labels=labels, annotations=annotations
    )


def endpoint_slice(*endpoints: str, **parts: object) -> EndpointSlice:
    """Return the slice of :func:`raw_slice`."""
    (made,) = read_object(raw_slice(*endpoints, **parts))  # type: ignore[arg-type]
    assert isinstance(made, EndpointSlice)
    return made


def frontend(words: str) -> Frontend:
    """Return the frontend of ``10.96.0.1 80``, ``fd00::1 53 UDP`` or ``node4 30080``.

    ``10.96.0.1 rest`` stands for all ports of the address without a frontend.
    """
    address, port, *protocol = words.split()
    if port == "rest":
        return Frontend.rest(pack(address))
    wildcards = {"node4": ANY_NODE_ADDRESS_V4, "node6": ANY_NODE_ADDRESS_V6}
    packed = wildcards.get(address) or pack(address)
    return Frontend(packed, int(port), PROTOCOLS[protocol[0] if protocol else "TCP"])


def frontend_text(one: Frontend) -> str:
    """Return a frontend's text as :func:`frontend` reads it, without the protocol."""
    if one.address in (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6):
        return f"node{family(one.address)} {one.port}"
    if one == Frontend.rest(one.address):
        return f"{unpack(one.address)} rest"
    return f"{unpack(one.address)} {one.port}"


def answers(entries: ServiceEntries, words: str) -> tuple[str, str, str]:
    """Return what a pod, this node and others meet at a frontend.

    ``to 10.0.0.1:80 10.0.0.2:80``, with `` masqueraded`` after it; ``refused``, ``silence``, or
    ``nothing`` where no entry matches.
    """
    wanted = frontend(words)
    for port_entries in entries.values():
        if wanted in port_entries.frontends:
            pod, node, other = port_entries.frontends[wanted].by_class
            return (
                _answer(port_entries, pod),
                _answer(port_entries, node),
                _answer(port_entries, other),
            )
    return "nothing", "nothing", "nothing"


def _answer(entries: PortEntries, policy: Policy) -> str:
    if not policy.size:
        return "refused" if policy.reject else "silence"
    picked = entries.backends[policy.first : policy.first + policy.size]
    assert len(picked) == policy.size, "the policy has more slots than there are backends"
    texts = " ".join(endpoint_text(*backend.place) for backend in picked)
    return f"to {texts}" + (" masqueraded" if policy.masquerade else "")
