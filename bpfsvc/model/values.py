"""The objects a node agent must know, reduced to what changes packets.

Ten thousand Services are kept for the life of the agent, so the values are flat, hold no field
that nothing reads, and share what repeats: traits and ports come from small caches, and the
addresses of a slice are one run of bytes instead of an object each. The classes are msgspec
Structs outside the cyclic garbage collector: they cannot form cycles, and a collector that does
not visit them does not pause for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from bpfsvc.base.address import family


class ObjectKey(NamedTuple):
    """The identity of an API object: ``namespace`` is empty for a Node or a ServiceCIDR."""

    kind: str
    namespace: str
    name: str


class Port(msgspec.Struct, frozen=True, gc=False):
    """An entry of a Service's ``spec.ports``; ``protocol`` is the IPPROTO number.

    ``node_port`` is 0 when there is none.
    """

    name: str
    protocol: int
    number: int
    node_port: int


Network: TypeAlias = tuple[bytes, bytes]
"""Network and mask, 16 packed bytes each (see :func:`bpfsvc.base.address.pack_network`)."""


class Service(msgspec.Struct, frozen=True, gc=False):
    """A Service.

    * ``cluster_ips``: at most one packed address per family; none for headless Services and
      ExternalName, which have no entries.
    * ``external_ips``, ``load_balancer_ips``: packed, both families mixed; the latter without the
      ingress addresses whose ``ipMode`` is ``Proxy``.
    * ``source_ranges``: ``loadBalancerSourceRanges`` that could be parsed.
    * ``internal_local``, ``external_local``: the two traffic policies are ``Local``.
    * ``health_check_node_port``: 0 when there is none.
    * ``affinity_seconds``: 0 without session affinity.
    * ``proxied_elsewhere``: the label ``service.kubernetes.io/service-proxy-name`` exists.
    * ``created``: ``creationTimestamp`` in Unix seconds; 0 without one.
    * ``annotations``: the names, without ``bpfsvc.io/``, and texts of bpfsvc's annotations, sorted.
      Their meaning: :mod:`bpfsvc.services.scheduling.annotations`.
    * ``unknown_values``: a text for each value of an enumeration that is not known here.
    """

    namespace: str
    name: str
    type: str
    cluster_ips: tuple[bytes, ...]
    ports: tuple[Port, ...]
    external_ips: tuple[bytes, ...] = ()
    load_balancer_ips: tuple[bytes, ...] = ()
    source_ranges: tuple[Network, ...] = ()
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0
    affinity_seconds: int = 0
    proxied_elsewhere: bool = False
    created: int = 0
    annotations: tuple[tuple[str, str], ...] = ()
    unknown_values: tuple[str, ...] = ()

    @property
    def key(self) -> ObjectKey:
        """The identity among all objects."""
        return ObjectKey("Service", self.namespace, self.name)

    @property
    def is_proxied(self) -> bool:
        """True if a service proxy handles it."""
        return bool(self.cluster_ips) and not self.proxied_elsewhere


class Traits(msgspec.Struct, frozen=True, gc=False):
    """The fields of an endpoint beside its address. Equal endpoints share one value.

    ``node`` and ``zone`` are empty if the slice names none; ``zones`` and ``nodes`` are the
    topology hints.
    """

    ready: bool
    serving: bool
    terminating: bool
    node: str
    zones: tuple[str, ...]
    nodes: tuple[str, ...]
    zone: str = ""

    @property
    def draining(self) -> bool:
        """True if it is terminating but still serves: used if no endpoint is ready."""
        return self.terminating and self.serving and not self.ready


class SlicePort(NamedTuple):
    """A port of a slice; ``protocol`` is the IPPROTO number."""

    name: str
    protocol: int
    number: int


class EndpointSlice(msgspec.Struct, frozen=True, gc=False):
    """Endpoints of one Service in one family.

    * ``kind``: ``EndpointSlice``, or ``Endpoints`` for a part of a classic object; ``name`` then
      carries a number that exists only here.
    * ``service``: name of the Service, empty if the slice names none.
    * ``family``: 4 or 6, 0 for kinds of addresses that are ignored (FQDN).
    * ``addresses``: 16 bytes for each endpoint, in the order of ``traits``.
    * ``headless``: the label ``service.kubernetes.io/headless`` exists.
    * ``weight``: the annotation ``bpfsvc.io/weight`` as it is written.
    * ``uids``: 16 bytes for each endpoint, the UID of its pod; zeros without one, and empty if none
      has one.
    * ``unknown_values``: as those of a Service.
    * ``pods``: the names of the endpoints' pods, see :meth:`pod_names`.
    """

    kind: str
    namespace: str
    name: str
    service: str
    family: int
    ports: tuple[SlicePort, ...]
    addresses: bytes
    traits: tuple[Traits, ...]
    headless: bool = False
    weight: str | None = None
    uids: bytes = b""
    unknown_values: tuple[str, ...] = ()
    pods: str = ""

    @property
    def key(self) -> ObjectKey:
        """The identity among all objects."""
        return ObjectKey(self.kind, self.namespace, self.name)

    @property
    def is_proxied(self) -> bool:
        """True if a service proxy handles it."""
        return bool(self.service) and not self.headless and self.family != 0

    def endpoints(self) -> Iterator[tuple[bytes, Traits]]:
        """Return the endpoints: packed address and traits."""
        addresses = self.addresses
        for index, traits in enumerate(self.traits):
            yield addresses[16 * index : 16 * index + 16], traits

    def pod_names(self) -> list[str]:
        """Return the name of each endpoint's pod, "" for one without; none if no name is known.

        They are kept as one text: what all names begin with, and then the rest of each. The pods of
        one Deployment differ in a few letters.
        """
        if not self.pods:
            return []
        common, *rests = self.pods.split("\n")
        return [common + rest if common or rest else "" for rest in rests]

    def without_pods(self) -> EndpointSlice:
        """Return the slice without the names of its pods."""
        return msgspec.structs.replace(self, pods="")

    def identities(self) -> Iterator[tuple[bytes, Traits, bytes]]:
        """Return the endpoints: address, traits, and the UID of the pod, else the address again."""
        for index, (address, traits) in enumerate(self.endpoints()):
            uid = self.uids[16 * index : 16 * index + 16]
            yield address, traits, uid if any(uid) else address


class Node(msgspec.Struct, frozen=True, gc=False):
    """A Node.

    * ``zone``: label ``topology.kubernetes.io/zone``, empty when missing.
    * ``addresses``: packed, the InternalIPs and then the ExternalIPs, each in status order.
    * ``leaving``: being deleted, or about to be removed by the cluster autoscaler.
    """

    name: str
    zone: str = ""
    addresses: tuple[bytes, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    leaving: bool = False

    @property
    def key(self) -> ObjectKey:
        """The identity among all objects."""
        return ObjectKey("Node", "", self.name)

    def at(self, addresses: tuple[bytes, ...]) -> Node:
        """Return the node with ``addresses`` in place of its addresses of the same families."""
        families = set(map(family, addresses))
        others = (address for address in self.addresses if family(address) not in families)
        return msgspec.structs.replace(self, addresses=(*addresses, *others))


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A Pod.

    * ``node``: where it runs, empty until that is decided.
    * ``addresses``: packed, its own; none for one in the network of its node.
    * ``opted_out``: the annotation ``bpfsvc.io/socket-lb`` is ``off``.
    """

    namespace: str
    name: str
    node: str = ""
    addresses: tuple[bytes, ...] = ()
    opted_out: bool = False

    @property
    def key(self) -> ObjectKey:
        """The identity among all objects."""
        return ObjectKey("Pod", self.namespace, self.name)


class ServiceCIDR(msgspec.Struct, frozen=True, gc=False):
    """A ServiceCIDR: networks that cluster IPs are allocated from."""

    name: str
    cidrs: tuple[Network, ...] = ()

    @property
    def key(self) -> ObjectKey:
        """The identity among all objects."""
        return ObjectKey("ServiceCIDR", "", self.name)


ModelObject: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR | Pod
