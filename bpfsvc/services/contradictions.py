"""Fields of a Service that contradict each other: what is written without an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bpfsvc.model.leniency import pack_lenient, pack_network_lenient
from bpfsvc.model.reading import PREFIX

Object = Mapping[str, Any]
Path = tuple[str | int, ...]
Contradiction = tuple[Path, str]
"""Where, and what."""


def contradictions(service: Object) -> Iterator[Contradiction]:
    """Yield the contradictions of a Service as it is written; its structure has been checked."""
    spec = service.get("spec") or {}
    given = (service["metadata"].get("annotations") or {}).items()
    ours = {name.removeprefix(PREFIX): text for name, text in given if name.startswith(PREFIX)}
    yield from _of_annotations(service, spec, ours)
    yield from _of_type(spec)
    yield from _of_ports(spec)
    yield from _of_texts(spec)


def _of_annotations(
    service: Object, spec: Object, ours: Mapping[str, str]
) -> Iterator[Contradiction]:
    labels = service["metadata"].get("labels") or {}
    where = ("metadata", "annotations")
    reason = ""
    if spec.get("type") == "ExternalName":
        reason = "is of type ExternalName"
    elif spec.get("clusterIP") == "None":
        reason = "is headless"
    elif "service.kubernetes.io/service-proxy-name" in labels:
        reason = "is another proxy's (service.kubernetes.io/service-proxy-name)"
    if ours and reason:
        yield where, f"without effect, because the Service {reason}: {', '.join(sorted(ours))}"
    if "drain-seconds" in ours and ours.get("on-removal") != "drain":
        text = f"without effect: it belongs to {PREFIX}on-removal: drain"
        yield (*where, f"{PREFIX}drain-seconds"), text
    if "zone-overload" in ours:
        overload = (*where, f"{PREFIX}zone-overload")
        if spec.get("internalTrafficPolicy") == "Local":
            yield (
                overload,
                "without effect for clients in the cluster: internalTrafficPolicy is Local",
            )
        elif not (spec.get("trafficDistribution") or _has_topology(service)):
            yield overload, "without effect: nothing keeps clients near (spec.trafficDistribution)"


def _has_topology(service: Object) -> bool:
    annotations = service["metadata"].get("annotations") or {}
    return any("topology" in name for name in annotations)


def _of_type(spec: Object) -> Iterator[Contradiction]:
    kind = spec.get("type") or "ClusterIP"
    has_outside = kind in ("NodePort", "LoadBalancer") or spec.get("externalIPs")
    if spec.get("externalTrafficPolicy") == "Local" and not has_outside:
        yield (
            ("spec", "externalTrafficPolicy"),
            f"without effect: type {kind} has no outside address",
        )
    if spec.get("healthCheckNodePort") and (
        kind != "LoadBalancer" or spec.get("externalTrafficPolicy") != "Local"
    ):
        text = "without effect: it needs type LoadBalancer and externalTrafficPolicy: Local"
        yield ("spec", "healthCheckNodePort"), text
    if spec.get("loadBalancerSourceRanges") and kind != "LoadBalancer":
        text = f"without effect for type {kind}, unless agents have --source-ranges-for-all"
        yield ("spec", "loadBalancerSourceRanges"), text
    if spec.get("sessionAffinityConfig") and spec.get("sessionAffinity") != "ClientIP":
        yield ("spec", "sessionAffinityConfig"), "without effect: sessionAffinity is not ClientIP"


def _of_ports(spec: Object) -> Iterator[Contradiction]:
    ports = spec.get("ports") or []
    names: set[str] = set()
    numbers: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        where: Path = ("spec", "ports", index)
        name, number = port.get("name") or "", (port.get("protocol") or "TCP", port["port"])
        if name in names:
            what = f"the name {name!r} is used" if name else "a port without a name is there"
            yield (*where, "name"), f"{what} already: each port needs a name of its own"
        if number in numbers:
            yield (*where, "port"), f"{number[1]}/{number[0]} is there already"
        if port.get("nodePort") and (spec.get("type") or "ClusterIP") == "ClusterIP":
            yield (*where, "nodePort"), "without effect: type ClusterIP has no node ports"
        names.add(name)
        numbers.add(number)


def _of_texts(spec: Object) -> Iterator[Contradiction]:
    """Yield addresses and networks that cannot be read, and are left out."""
    fields: dict[str, Callable[[str], object]] = {
        "externalIPs": pack_lenient,
        "loadBalancerSourceRanges": pack_network_lenient,
    }
    for field, parse in fields.items():
        for index, text in enumerate(spec.get(field) or []):
            try:
                parse(text)
            except ValueError:
                yield ("spec", field, index), f"{text!r} cannot be read, so it is left out"
