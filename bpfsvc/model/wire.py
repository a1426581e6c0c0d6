"""The API's own structure of the objects, as far as it is read, and the errors of reading it.

The classes have the API's names, as the classes of ``values`` do. So ``reading``, the only module
that uses both, writes ``wire.Service`` and ``values.Service``; no class of this module is imported
by its name.

These Structs exist only while an object is decoded: msgspec fills them straight from JSON, skips
every field that is not named here (managedFields are most of an object) and checks types and
ranges. Labels are a Struct too, so only the few that matter become objects. ``null`` is accepted
where the API server writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from bpfsvc.base.errors import BpfsvcError

Name = Annotated[str, Meta(min_length=1)]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]
PortOrZero = Annotated[int, Meta(ge=0, le=65535)]
Enumeration = str
"""A value of a set that may grow (:mod:`bpfsvc.model.unknown_values`)."""


class Wire(msgspec.Struct, gc=False, rename="camel"):
    """Common settings of the classes below."""


class Labels(Wire):
    """The labels that a service proxy reads."""

    service_name: str = field(default="", name="kubernetes.io/service-name")
    proxy_name: str | UnsetType = field(
        default=UNSET, name="service.kubernetes.io/service-proxy-name"
    )
    headless: str | UnsetType = field(default=UNSET, name="service.kubernetes.io/headless")
    zone: str = field(default="", name="topology.kubernetes.io/zone")


NO_LABELS = Labels()


Annotations = dict[str, object]
"""All annotations of an object: few objects have any. ``reading`` picks bpfsvc's own."""


class Metadata(Wire):
    """``metadata`` of any object."""

    name: Name
    namespace: str | None = None
    labels: Labels | None = None
    annotations: Annotations | None = None
    creation_timestamp: object = None
    deletion_timestamp: object = None


class ServicePort(Wire):
    """``spec.ports[]`` of a Service."""

    port: PortNumber
    name: str | None = None
    protocol: Enumeration | None = None
    node_port: PortOrZero | None = None


class ClientIP(Wire):
    """``spec.sessionAffinityConfig.clientIP``."""

    timeout_seconds: Annotated[int, Meta(ge=1, le=86400)] | None = None


class AffinityConfig(Wire):
    """``spec.sessionAffinityConfig``."""

    client_ip: ClientIP | None = field(default=None, name="clientIP")


class ServiceSpec(Wire):
    """``spec`` of a Service."""

    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    ip_families: list[Enumeration] | None = None
    ports: list[ServicePort] | None = None
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    load_balancer_source_ranges: list[str] | None = None
    internal_traffic_policy: Enumeration | None = None
    external_traffic_policy: Enumeration | None = None
    health_check_node_port: PortOrZero | None = None
    session_affinity: Enumeration | None = None
    session_affinity_config: AffinityConfig | None = None


class Ingress(Wire):
    """``status.loadBalancer.ingress[]`` of a Service."""

    ip: str | None = None
    ip_mode: Enumeration | None = None


class LoadBalancer(Wire):
    """``status.loadBalancer`` of a Service."""

    ingress: list[Ingress] | None = None


class ServiceStatus(Wire):
    """``status`` of a Service."""

    load_balancer: LoadBalancer | None = None


class Service(Wire):
    """``v1`` Service."""

    metadata: Metadata
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class NamedHint(Wire):
    """``hints.forZones[]`` and ``hints.forNodes[]``."""

    name: str


class Hints(Wire):
    """``endpoints[].hints`` of a slice."""

    for_zones: list[NamedHint] | None = None
    for_nodes: list[NamedHint] | None = None


class Conditions(Wire):
    """``endpoints[].conditions`` of a slice; ``null`` means what a missing one means."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(Wire):
    """``targetRef`` of an endpoint."""

    uid: str | None = None
    kind: str | None = None
    name: str | None = None


class Endpoint(Wire):
    """``endpoints[]`` of a slice."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: Hints | None = None
    target_ref: TargetRef | None = None


class SlicePort(Wire):
    """``ports[]`` of a slice."""

    name: str | None = None
    port: PortOrZero | None = None
    protocol: Enumeration | None = None


class EndpointSlice(Wire):
    """``discovery.k8s.io/v1`` EndpointSlice."""

    metadata: Metadata
    address_type: str
    endpoints: list[Endpoint] | None = None
    ports: list[SlicePort] | None = None


class SubsetAddress(Wire):
    """``subsets[].addresses[]`` of Endpoints."""

    ip: str
    node_name: str | None = None


class SubsetPort(Wire):
    """``subsets[].ports[]`` of Endpoints."""

    port: PortNumber
    name: str | None = None
    protocol: Enumeration | None = None


class Subset(Wire):
    """``subsets[]`` of Endpoints."""

    addresses: list[SubsetAddress] | None = None
    not_ready_addresses: list[SubsetAddress] | None = None
    ports: list[SubsetPort] | None = None


class Endpoints(Wire):
    """``v1`` Endpoints."""

    metadata: Metadata
    subsets: list[Subset] | None = None


class NodeAddress(Wire):
    """``status.addresses[]`` of a Node."""

    type: str
    address: str


class Taint(Wire):
    """``spec.taints[]`` of a Node."""

    key: str


class NodeSpec(Wire):
    """``spec`` of a Node."""

    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None


class NodeStatus(Wire):
    """``status`` of a Node."""

    addresses: list[NodeAddress] | None = None


class Node(Wire):
    """``v1`` Node."""

    metadata: Metadata
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ServiceCIDRSpec(Wire):
    """``spec`` of a ServiceCIDR."""

    cidrs: list[str] | None = None


class ServiceCIDR(Wire):
    """``networking.k8s.io/v1`` ServiceCIDR."""

    metadata: Metadata
    spec: ServiceCIDRSpec | None = None


class PodAddress(Wire):
    """``status.podIPs[]`` of a Pod."""

    ip: str | None = None


class PodSpec(Wire):
    """``spec`` of a Pod."""

    node_name: str | None = None
    host_network: bool | None = None


class PodStatus(Wire):
    """``status`` of a Pod."""

    pod_ips: list[PodAddress] | None = field(default=None, name="podIPs")


class Pod(Wire):
    """``v1`` Pod."""

    metadata: Metadata
    spec: PodSpec | None = None
    status: PodStatus | None = None


class PodList(Wire):
    """``v1`` PodList."""

    items: list[Pod] | None = None


class Identity(Wire):
    """The fields that name the kind of any object."""

    kind: str
    api_version: str


class ObjectError(BpfsvcError):
    """A field of an object has a type or a value that cannot be used.

    ``path`` leads to the field, keys and list indexes in turn; ``reason`` names the fault.
    """

    def __init__(self, path: tuple[str | int, ...], reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path_text(path)}: {reason}" if path else reason)


def path_text(path: tuple[str | int, ...]) -> str:
    """Return a path as people write it: ``spec.ports[0].port``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


Shape = TypeVar("Shape", bound=Wire)


def from_mapping(raw: Mapping[str, object], shape: type[Shape]) -> Shape:
    """Return ``raw`` as a ``shape``; raises :class:`ObjectError` where it does not fit."""
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        raise _object_error(error, raw) from error
    except UnicodeEncodeError as error:
        # YAML can write half of a surrogate pair, in a name of a field, too.
        raise ObjectError((), f"a text is not valid Unicode: {error.object!r}") from error


def annotation_text(name: str, value: object) -> str:
    """Return the value of an annotation; raise :class:`ObjectError` if it is no text."""
    if not isinstance(value, str):
        path = "metadata", "annotations", name
        kinds = {bool: "bool", int: "int", float: "float", list: "array"}
        raise ObjectError(path, f"expected str | null, got {kinds.get(type(value), 'object')}")
    return value


def decoder(shape: type[Shape]) -> Callable[[bytes], Shape]:
    """Return a function that decodes JSON into a ``shape``; it raises :class:`ObjectError`."""
    decode = msgspec.json.Decoder(shape).decode

    def read(data: bytes) -> Shape:
        try:
            try:
                return decode(data)
            except msgspec.ValidationError as error:
                # What follows a wrong value may be no JSON at all.
                raise _object_error(error, msgspec.json.decode(data)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ObjectError((), f"malformed JSON: {error}") from error

    return read


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MAPS_OF_METADATA = ("labels", "annotations")


def _object_error(error: msgspec.ValidationError, raw: object) -> ObjectError:
    """Return the error of msgspec's text ``Expected `int`, got `str` - at `$.spec.ports[0]```."""
    sentence, _, location = str(error).partition(" - at ")
    path = _path(location.rpartition("$")[2].rstrip("`"))
    reason = sentence[:1].lower() + sentence[1:].replace("`", "")
    value = _value_at(raw, path)
    if isinstance(value, int | float | str) and "got" not in reason and repr(value) not in reason:
        reason += f", got {value!r}"
    return ObjectError(path, reason)


def _path(location: str) -> tuple[str | int, ...]:
    """Split ``.spec.ports[0]`` into its steps; names of labels and annotations have dots."""
    for name in _MAPS_OF_METADATA:
        if location.startswith(f".metadata.{name}."):
            return "metadata", name, location.removeprefix(f".metadata.{name}.")
    return tuple(int(index) if index else name for name, index in _STEP.findall(location))


def _value_at(raw: object, path: tuple[str | int, ...]) -> object:
    for step in path:
        if isinstance(raw, dict):
            raw = raw.get(step)
        elif isinstance(raw, list) and isinstance(step, int):
            raw = raw[step]
    return raw
