"""Service ports as JSON and YAML; docs/services-command.md names the fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bpfsvc.base.address import unpack
from bpfsvc.inspect.documents import json_list, yaml_list
from bpfsvc.inspect.services.connect_times import ConnectTimes
from bpfsvc.inspect.services.facts import BackendFacts, FrontendFacts, ServicePortFacts
from bpfsvc.inspect.services.view import View


def write_view_json(view: View) -> Iterator[str]:
    """Yield the pieces of one JSON object, with a service port per line."""
    yield f'{json.dumps(_head(view))[:-1]}, "services": '
    yield from json_list(_objects(view))
    yield "}\n"


def write_view_yaml(view: View) -> Iterator[str]:
    """Yield the pieces of one YAML document."""
    for name, value in _head(view).items():
        yield f"{name}: {json.dumps(value)}\n"
    yield from yaml_list("services", _objects(view))


def _head(view: View) -> dict[str, Any]:
    head: dict[str, Any] = {"socket_lb": view.socket_lb}
    if view.seconds is not None:
        head["seconds"] = round(view.seconds, 3)
    return head


def _objects(view: View) -> Iterator[dict[str, Any]]:
    for port in view.ports:
        yield service_port_object(view, port)


def service_port_object(view: View, port: ServicePortFacts) -> dict[str, Any]:
    """Return the JSON object of a service port of a view."""
    active, inactive = port.known(port.active, port.inactive)
    return {
        "namespace": port.namespace,
        "name": port.name,
        "port_name": port.port_name,
        "port": port.number,
        "protocol": port.protocol,
        "family": port.family,
        "id": port.service,
        "scheduler": port.scheduler,
        **port.said,
        "zone_overload": port.zone_overload,
        "affinity_seconds": port.affinity_seconds,
        "source_ranges": list(port.source_ranges),
        "half_open": port.half_open,
        "active": active,
        "inactive": inactive,
        "at_least": list(port.partial),
        **_traffic(view, port),
        "frontends": [_frontend(frontend) for frontend in port.frontends],
        "backends": [_backend(view, port, backend) for backend in port.backends],
    }


def _frontend(frontend: FrontendFacts) -> dict[str, Any]:
    address = (
        frontend.text.partition(":")[0]
        if frontend.text.startswith("nodeport")
        else unpack(frontend.address)
    )
    return {
        "frontend": frontend.text,
        "address": address,
        "port": frontend.port,
        "restricted": frontend.restricted,
        "clients": {
            clients: treatment._asdict()
            for clients, treatment in frontend.clients._asdict().items()
        },
    }


def _backend(view: View, port: ServicePortFacts, backend: BackendFacts) -> dict[str, Any]:
    active, inactive = port.known(backend.active, backend.inactive)
    fields: dict[str, Any] = {
        "address": unpack(backend.endpoint[0]),
        "port": backend.endpoint[1],
        "state": backend.state,
        "weight": backend.weight,
        "local": backend.local,
        "clients": list(backend.clients),
        "half_open": backend.half_open,
        "active": active,
        "inactive": inactive,
        "failed_lately": _failed(view, backend),
    }
    if view.traffic is not None:
        amounts = view.traffic.of_backend(port, backend)
        failed = view.traffic.failed_of_backend(port, backend)
        counted = {**amounts._asdict(), **failed._asdict()} if amounts else None
        fields[_name(view)] = _rounded(counted) if counted else None
        fields["connect_times"] = _times(view.traffic.connects_of_backend(port, backend))
    return fields


def _failed(view: View, backend: BackendFacts) -> dict[str, float] | None:
    failed = view.failed_lately(backend)
    return None if failed is None else failed._asdict()


def _traffic(view: View, port: ServicePortFacts) -> dict[str, Any]:
    if view.traffic is None:
        return {}
    amounts, refused = view.traffic.of_port(port), view.traffic.refused_of(port)
    failed = view.traffic.failed_of(port)
    counted = {**amounts._asdict(), **refused._asdict(), **failed._asdict()}
    return {
        _name(view): _rounded(counted),
        "connect_times": _times(view.traffic.connects_of(port)),
    }


def _times(times: ConnectTimes) -> dict[str, Any] | None:
    """Return milliseconds; of a quantile between which it lies, null for no end."""
    median, p95 = times.quantile(0.5), times.quantile(0.95)
    if median is None or p95 is None or times.mean_ms is None:
        return None
    return {
        "connects": times.connects,
        "mean_ms": round(times.mean_ms, 3),
        "median_ms": list(median),
        "p95_ms": list(p95),
    }


def _name(view: View) -> str:
    return "counts" if view.seconds is None else "rates"


def _rounded(amounts: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in amounts.items()}
