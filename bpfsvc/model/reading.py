"""From the API's structure to the values that the agent keeps.

There are two steps because the API's structure is made for people who write objects, and the values
for ten thousand of them in memory: addresses packed, defaults filled in, one cluster IP per family,
classic Endpoints turned into slices. What kube-proxy skips is skipped here (an invalid external IP,
an invalid source range); what the API server never accepts is an :class:`ObjectError` that names
the field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from sys import intern
from typing import Any, TypeVar

from msgspec import UNSET

from bpfsvc.base.address import family, pack_v4
from bpfsvc.base.clock import unix_seconds
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.model import unknown_values, values, wire
from bpfsvc.model.answers import PodPlace
from bpfsvc.model.leniency import pack_lenient, pack_network_lenient
from bpfsvc.model.unknown_values import FAMILIES, VIP, has_known_protocol

Path = tuple[str | int, ...]
Objects = tuple[values.ModelObject, ...]

_Packed = TypeVar("_Packed")
_Ports = TypeVar("_Ports")

_AFFINITY_DEFAULT = 10800
"""Seconds the API server fills in when ``sessionAffinityConfig`` says nothing."""

_AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"


def read_object(raw: Mapping[str, object]) -> Objects:
    """Return the values of one API object in plain types; none for kinds that are not used here.

    Lists are not handled here. Raises :class:`ObjectError` for a field that cannot be used.
    """
    identity = wire.from_mapping(raw, wire.Identity)
    kind = _KINDS.get((identity.api_version, identity.kind))
    return kind.read(wire.from_mapping(raw, kind.shape)) if kind else ()


def read_json(data: bytes) -> Objects:
    """Return the values of one API object in JSON, otherwise as :func:`read_object`."""
    kind = _HEADS.get(data[: data.find(_METADATA)])
    if kind is None:
        identity = _identity(data)
        kind = _KINDS.get((identity.api_version, identity.kind))
    return kind.read(kind.decode(data)) if kind else ()


_identity = wire.decoder(wire.Identity)


class _Kind:
    """How one kind is decoded and converted."""

    def __init__(self, shape: type[Any], read: Callable[[Any], Objects]) -> None:
        self.shape = shape
        self.decode = wire.decoder(shape)
        self.read = read


def _service(raw: wire.Service) -> Objects:
    spec = raw.spec or wire.ServiceSpec()
    labels = raw.metadata.labels or wire.NO_LABELS
    balancer = raw.status.load_balancer if raw.status else None
    ingress = (balancer.ingress if balancer else None) or ()
    cluster_ips = _cluster_ips(spec)
    return (
        values.Service(
            namespace=_namespace(raw.metadata),
            name=intern(raw.metadata.name),
            type=intern(spec.type or "ClusterIP"),
            cluster_ips=cluster_ips,
            ports=_shared_ports(
                tuple(
                    _service_port(port.name or "", port.protocol, port.port, port.node_port or 0)
                    for port in spec.ports or ()
                    if has_known_protocol(port)
                )
            ),
            external_ips=_usable(pack_lenient, spec.external_ips or ()),
            load_balancer_ips=_usable(
                pack_lenient,
                [entry.ip for entry in ingress if entry.ip and (entry.ip_mode or VIP) == VIP],
            ),
            source_ranges=_usable(pack_network_lenient, spec.load_balancer_source_ranges or ()),
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=spec.external_traffic_policy == "Local",
            health_check_node_port=spec.health_check_node_port or 0,
            affinity_seconds=_affinity_seconds(spec),
            proxied_elsewhere=labels.proxy_name is not UNSET,
            created=max(0, int(unix_seconds(raw.metadata.creation_timestamp))),
            annotations=_annotations(raw.metadata),
            unknown_values=tuple(unknown_values.of_service(spec, ingress))
            if _has_cluster_ip(spec)
            else (),
        ),
    )


PREFIX = "bpfsvc.io/"
"""Of the names of all annotations of bpfsvc."""

OF_SLICES, OF_PODS = "weight", "socket-lb"
"""The annotation of slices, and that of Pods. The annotations of Services are in a table:
:mod:`bpfsvc.services.scheduling.annotations`."""

_NO_ANNOTATIONS: tuple[tuple[str, str], ...] = ()


def _annotations(metadata: wire.Metadata) -> tuple[tuple[str, str], ...]:
    """Return names, without their prefix, and texts of the annotations of bpfsvc, sorted."""
    if not metadata.annotations:
        return _NO_ANNOTATIONS
    return tuple(
        (intern(name.removeprefix(PREFIX)), wire.annotation_text(name, text))
        for name, text in sorted(metadata.annotations.items())
        if text is not None and name.startswith(PREFIX)
    )


def _cluster_ips(spec: wire.ServiceSpec) -> tuple[bytes, ...]:
    """Return the cluster IP of each family that has one.

    ``ipFamilies`` has the families of ``clusterIPs``, in the same order; objects older than
    dual-stack, and many manifests, have ``clusterIP`` alone.
    """
    if not _has_cluster_ip(spec):
        return ()
    if not spec.ip_families or not spec.cluster_ips:
        return (_address(spec.cluster_ip or "", ("spec", "clusterIP")),)
    packed = [
        (wanted, _address(text, ("spec", "clusterIPs", index)))
        for index, (wanted, text) in enumerate(
            zip(spec.ip_families, spec.cluster_ips, strict=False)
        )
        if wanted in FAMILIES
    ]
    return tuple(address for wanted, address in packed if family(address) == FAMILIES[wanted])


def _has_cluster_ip(spec: wire.ServiceSpec) -> bool:
    return spec.type != "ExternalName" and spec.cluster_ip not in (None, "", "None")


def _affinity_seconds(spec: wire.ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    return seconds or _AFFINITY_DEFAULT


def _slice(raw: wire.EndpointSlice) -> Objects:
    labels = raw.metadata.labels or wire.NO_LABELS
    of_family = FAMILIES.get(raw.address_type, 0)
    usable = [
        (_endpoint_address(point.addresses[0], index, of_family), _traits_of(point), point)
        for index, point in enumerate(raw.endpoints or ())
        if point.addresses and of_family
    ]
    return (
        values.EndpointSlice(
            kind="EndpointSlice",
            namespace=_namespace(raw.metadata),
            name=raw.metadata.name,
            service=intern(labels.service_name),
            family=of_family,
            ports=_shared_ports(
                tuple(
                    _slice_port(port.name or "", port.protocol, port.port)
                    for port in raw.ports or ()
                    if port.port and has_known_protocol(port)
                )
            ),
            addresses=b"".join([address for address, _, _ in usable]),
            traits=tuple([traits for _, traits, _ in usable]),
            headless=labels.headless is not UNSET,
            weight=_weight(raw.metadata),
            uids=_uids([_uid(point) for _, _, point in usable]),
            unknown_values=tuple(unknown_values.of_ports("ports", raw.ports or ())),
            pods=_pods([_pod_name(point) for _, _, point in usable]),
        ),
    )


def _endpoint_address(text: str, index: int, of_family: int) -> bytes:
    """Return the packed address of an endpoint; nearly all are IPv4 in its usual form."""
    if of_family == 4 and (usual := pack_v4(text)):
        return usual
    return _address(text, ("endpoints", index, "addresses", 0), of_family)


_NO_UID = bytes(16)


def _uid(point: wire.Endpoint) -> bytes:
    """Return the UID of an endpoint's pod; one that is none by RFC 9562 as a hash of it."""
    text = point.target_ref.uid if point.target_ref else None
    if not text:
        return _NO_UID
    with suppress(ValueError):
        uid = bytes.fromhex(text.replace("-", ""))
        if len(uid) == len(_NO_UID):
            return uid
    return blake2b(text.encode(), digest_size=len(_NO_UID)).digest()


def _pod_name(point: wire.Endpoint) -> str:
    ref = point.target_ref
    return (ref.name or "") if ref and ref.kind == "Pod" else ""


def _pods(names: list[str]) -> str:
    """Return the names of pods as ``EndpointSlice.pods`` has them; "" if there are none."""
    if not any(names):
        return ""
    first, last = min(names), max(names)
    shared = (at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1)
    common = first[: next(shared, len(first))]
    return "\n".join((common, *(name[len(common) :] for name in names)))


def _uids(uids: list[bytes]) -> bytes:
    return b"".join(uids) if any(uid is not _NO_UID for uid in uids) else b""


def _traits_of(point: wire.Endpoint) -> values.Traits:
    conditions = point.conditions or _NO_CONDITIONS
    hints = point.hints
    return _traits(
        conditions.ready is not False,
        conditions.serving is not False,
        conditions.terminating is True,
        point.node_name or "",
        tuple(hint.name for hint in hints.for_zones or ()) if hints else (),
        tuple(hint.name for hint in hints.for_nodes or ()) if hints else (),
        point.zone or "",
    )


def _weight(metadata: wire.Metadata) -> str | None:
    return dict(_annotations(metadata)).get(OF_SLICES) if metadata.annotations else None


_NO_CONDITIONS = wire.Conditions()


def _endpoints(raw: wire.Endpoints) -> Objects:
    """Return a classic object as slices: one per subset and family, numbered from 0."""
    labels = raw.metadata.labels or wire.NO_LABELS
    parts = [
        (of_family, subset, endpoints)
        for number, subset in enumerate(raw.subsets or ())
        for of_family, endpoints in _subset_by_family(subset, number).items()
        if endpoints
    ]
    unknown = tuple(
        text
        for number, subset in enumerate(raw.subsets or ())
        for text in unknown_values.of_ports(f"subsets[{number}].ports", subset.ports or ())
    )
    return tuple(
        values.EndpointSlice(
            kind="Endpoints",
            namespace=_namespace(raw.metadata),
            name=f"{raw.metadata.name}-{number}",
            service=raw.metadata.name,
            family=of_family,
            ports=_shared_ports(
                tuple(
                    _slice_port(port.name or "", port.protocol, port.port)
                    for port in subset.ports or ()
                    if has_known_protocol(port)
                )
            ),
            addresses=b"".join(address for address, _ in endpoints),
            traits=tuple(traits for _, traits in endpoints),
            headless=labels.headless is not UNSET,
            weight=_weight(raw.metadata),
            unknown_values=unknown,
        )
        for number, (of_family, subset, endpoints) in enumerate(parts)
    )


def _subset_by_family(
    subset: wire.Subset, number: int
) -> dict[int, list[tuple[bytes, values.Traits]]]:
    endpoints: dict[int, list[tuple[bytes, values.Traits]]] = {4: [], 6: []}
    readiness = (
        ("addresses", subset.addresses, True),
        ("notReadyAddresses", subset.not_ready_addresses, False),
    )
    for field, addresses, ready in readiness:
        for index, entry in enumerate(addresses or ()):
            address = _address(entry.ip, ("subsets", number, field, index, "ip"))
            traits = _traits(ready, ready, False, entry.node_name or "", (), ())
            endpoints[family(address)].append((address, traits))
    return endpoints


def _node(raw: wire.Node) -> Objects:
    labels = raw.metadata.labels or wire.NO_LABELS
    listed = (raw.status.addresses if raw.status else None) or ()
    spec = raw.spec or wire.NodeSpec()
    tainted = any(taint.key == _AUTOSCALER_TAINT for taint in spec.taints or ())
    return (
        values.Node(
            name=raw.metadata.name,
            zone=labels.zone,
            addresses=_usable(
                pack_lenient,
                [
                    entry.address
                    for wanted in ("InternalIP", "ExternalIP")
                    for entry in listed
                    if entry.type == wanted
                ],
            ),
            pod_cidrs=_usable(pack_network_lenient, spec.pod_cidrs or ()),
            leaving=tainted or raw.metadata.deletion_timestamp is not None,
        ),
    )


def _service_cidr(raw: wire.ServiceCIDR) -> Objects:
    cidrs = (raw.spec.cidrs if raw.spec else None) or ()
    return (values.ServiceCIDR(raw.metadata.name, _usable(pack_network_lenient, cidrs)),)


def _pod(raw: wire.Pod) -> Objects:
    spec = raw.spec or wire.PodSpec()
    status = raw.status or wire.PodStatus()
    listed = () if spec.host_network else status.pod_ips or ()
    return (
        values.Pod(
            namespace=_namespace(raw.metadata),
            name=raw.metadata.name,
            node=intern(spec.node_name or ""),
            addresses=_usable(pack_lenient, [entry.ip for entry in listed if entry.ip]),
            opted_out=dict(_annotations(raw.metadata)).get(OF_PODS) == "off",
        ),
    )


def read_pod_places(data: bytes) -> list[PodPlace]:
    """Return where the Pods of a list in JSON are; raise :class:`ObjectError` if it is none."""
    return [_pod_place(raw) for raw in _pod_list(data).items or ()]


_pod_list = wire.decoder(wire.PodList)


def _pod_place(raw: wire.Pod) -> PodPlace:
    spec = raw.spec or wire.PodSpec()
    listed = (raw.status.pod_ips if raw.status else None) or ()
    addresses = _usable(pack_lenient, [entry.ip for entry in listed if entry.ip])
    return PodPlace(spec.node_name or "", addresses, bool(spec.host_network))


_KINDS = {
    ("v1", "Pod"): _Kind(wire.Pod, _pod),
    ("v1", "Service"): _Kind(wire.Service, _service),
    ("v1", "Endpoints"): _Kind(wire.Endpoints, _endpoints),
    ("v1", "Node"): _Kind(wire.Node, _node),
    ("discovery.k8s.io/v1", "EndpointSlice"): _Kind(wire.EndpointSlice, _slice),
    ("networking.k8s.io/v1", "ServiceCIDR"): _Kind(wire.ServiceCIDR, _service_cidr),
    ("networking.k8s.io/v1beta1", "ServiceCIDR"): _Kind(wire.ServiceCIDR, _service_cidr),
}

_METADATA = b'"metadata":'
_HEADS = {
    f'{{"kind":"{kind}","apiVersion":"{version}",'.encode(): reader
    for (version, kind), reader in _KINDS.items()
}
"""Kinds by how their objects begin if an API server wrote them: nothing has to be decoded."""


def _namespace(metadata: wire.Metadata) -> str:
    return intern(metadata.namespace or "default")


def _address(text: str, path: Path, of_family: int = 0) -> bytes:
    """Return a packed address, of family 4 or 6 if that is given."""
    try:
        address = pack_lenient(text)
    except ValueError as error:
        raise wire.ObjectError(path, str(error)) from error
    if of_family and family(address) != of_family:
        raise wire.ObjectError(path, f"{text!r} is not an IPv{of_family} address")
    return address


def _usable(pack_one: Callable[[str], _Packed], texts: Collection[str]) -> tuple[_Packed, ...]:
    """Return the packed form of the valid texts; the others are skipped, as kube-proxy does."""
    if not texts:
        return ()
    usable = []
    for text in texts:
        with suppress(ValueError):
            usable.append(pack_one(text))
    return tuple(usable)


# Equal ports and traits repeat by the thousand; a cache makes them one object.


@lru_cache(maxsize=4096)
def _service_port(name: str, protocol: str | None, number: int, node_port: int) -> values.Port:
    return values.Port(name, PROTOCOLS[protocol or "TCP"], number, node_port)


@lru_cache(maxsize=4096)
def _slice_port(name: str, protocol: str | None, number: int) -> values.SlicePort:
    return values.SlicePort(name, PROTOCOLS[protocol or "TCP"], number)


@lru_cache(maxsize=4096)
def _shared_ports(ports: _Ports) -> _Ports:
    return ports


_traits = lru_cache(maxsize=4096)(values.Traits)
