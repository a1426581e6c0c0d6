"""The objects that this node knows: Services, their slices and networks, the node and its pods.

A change returns the Services that it touches, so its cost does not grow with the cluster. Labels
and headless Services are filtered when entries are made, not here: an object that gains or loses
such a label is an ordinary change, in both directions. A slice that moves to another Service
touches the old one and the new one.

The index is by name inside namespace wherever that saves a key object; with ten thousand Services
the keys would take as much memory as the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from bpfsvc.model import (
    EndpointSlice,
    ModelObject,
    Network,
    Node,
    ObjectKey,
    Pod,
    Service,
    ServiceCIDR,
)

ServiceKey: TypeAlias = tuple[str, str]
"""Namespace and name of a Service."""


class Known(NamedTuple):
    """What is known under one Service's name; slices may come before their Service."""

    service: Service | None
    slices: tuple[EndpointSlice, ...]


_NOTHING = Known(None, ())

_NO_KINDS: Mapping[str, Collection[ServiceKey]] = MappingProxyType({})


class Cache:
    """The current objects. ``node_name`` is the name of this Node; others are ignored.

    ``own_addresses`` (packed) replace those that the Node object has in their families.
    """

    def __init__(
        self, node_name: str, own_addresses: tuple[bytes, ...] = (), *, pods_seen: bool = False
    ) -> None:
        """``pods_seen``: objects come with all pods of this node, as those of manifests do."""
        self._own_addresses = own_addresses
        self.node = Node(node_name, addresses=own_addresses)
        """This node; without address or zone until its object is seen, the last one seen after."""
        self.node_seen = False
        """True once the Node object was seen."""
        self._service_cidrs: dict[str, tuple[Network, ...]] = {}
        self._pods: dict[tuple[str, str], Pod] = {}
        self.pods_seen = pods_seen
        """True once all pods of this node were listed."""
        self._known: dict[ServiceKey, Known] = {}
        self._service_of: dict[tuple[str, str], dict[str, str]] = {}
        """(kind, namespace) -> name of a slice -> name of its Service."""

    def apply(
        self,
        puts: Iterable[ModelObject],
        gone: Iterable[ObjectKey],
        whole: Mapping[str, Collection[ServiceKey]] = _NO_KINDS,
    ) -> set[ServiceKey]:
        """Apply changes; return the Services that may have other entries now.

        Objects in ``gone`` are removed before the others are put, so an object that moved between
        sources may be in both. ``whole``: kinds with the names of all their objects; any other
        object of these kinds is removed.
        """
        touched: set[ServiceKey] = set()
        for key in gone:
            touched |= self._remove(key)
        self.pods_seen |= "Pod" in whole
        for kind, names in whole.items():
            for key in [identity for identity in self._keys(kind) if identity[1:] not in names]:
                touched |= self._remove(key)
        for thing in puts:
            touched |= self._put(thing)
        return touched

    def lookup(self, key: ServiceKey) -> Known:
        """Return the Service of a name, and its slices; both may be missing."""
        return self._known.get(key, _NOTHING)

    def service_keys(self) -> list[ServiceKey]:
        """Return the keys of all Services."""
        return [key for key, known in self._known.items() if known.service]

    def all_known(self) -> list[Known]:
        """Return what is known under each Service's name. Any thread may call this."""
        return [*self._known.values()]

    def service_networks(self) -> set[Network]:
        """Return all networks that cluster IPs are taken from, as (network, mask)."""
        return {network for cidrs in self._service_cidrs.values() for network in cidrs}

    def opted_out(self) -> set[bytes]:
        """Return the packed addresses of this node's pods that do not want the socket LB."""
        return {address for pod in self._pods.values() for address in pod.addresses}

    def objects(self) -> list[ModelObject]:
        """Return all objects, for a snapshot."""
        objects: list[ModelObject] = [self.node] if self.node_seen else []
        objects += (ServiceCIDR(*item) for item in self._service_cidrs.items())
        objects += self._pods.values()
        for service, slices in self._known.values():
            if service:
                objects.append(service)
            objects += slices
        return objects

    def _keys(self, kind: str) -> Iterator[ObjectKey]:
        if kind == "Service":
            return (ObjectKey(kind, *key) for key, known in self._known.items() if known.service)
        if kind == "ServiceCIDR":
            return (ObjectKey(kind, "", name) for name in self._service_cidrs)
        if kind == "Pod":
            return (ObjectKey(kind, *identity) for identity in self._pods)
        return (
            ObjectKey(kind, namespace, name)
            for (of_kind, namespace), names in self._service_of.items()
            if of_kind == kind
            for name in names
        )

    def _remove(self, key: ObjectKey) -> set[ServiceKey]:
        if key.kind == "Service":
            return self._set_service((key.namespace, key.name), None)
        if key.kind == "ServiceCIDR":
            self._service_cidrs.pop(key.name, None)
        elif key.kind == "Pod":
            self._pods.pop((key.namespace, key.name), None)
        elif key.kind != "Node":
            return self._remove_slice(key)
        return set()

    def _put(self, thing: ModelObject) -> set[ServiceKey]:
        if isinstance(thing, EndpointSlice):
            return self._put_slice(thing)
        if isinstance(thing, Service):
            return self._set_service((thing.namespace, thing.name), thing)
        if isinstance(thing, ServiceCIDR):
            self._service_cidrs[thing.name] = thing.cidrs
            return set()
        if isinstance(thing, Pod):
            self._put_pod(thing)
            return set()
        return self._put_node(thing)

    def _put_pod(self, pod: Pod) -> None:
        """Keep the pod if it does not want the socket LB; few do."""
        if pod.opted_out and pod.node == self.node.name:
            self._pods[pod.namespace, pod.name] = pod
        else:
            self._pods.pop((pod.namespace, pod.name), None)

    def _put_node(self, node: Node) -> set[ServiceKey]:
        if node.name != self.node.name:
            return set()
        self.node_seen = True
        node = node.at(self._own_addresses)
        changed = (node.zone, node.addresses) != (self.node.zone, self.node.addresses)
        self.node = node
        return set(self.service_keys()) if changed else set()

    def _set_service(self, key: ServiceKey, service: Service | None) -> set[ServiceKey]:
        known = self.lookup(key)
        if known.service == service:
            return set()
        self._store(key, Known(service, known.slices))
        return {key}

    def _put_slice(self, new: EndpointSlice) -> set[ServiceKey]:
        siblings = self._service_of.setdefault((new.kind, new.namespace), {})
        touched = set()
        if siblings.get(new.name, new.service) != new.service:
            touched = self._remove_slice(new.key)
        siblings[new.name] = new.service
        key = (new.namespace, new.service)
        known = self.lookup(key)
        if new in known.slices:
            return touched
        others = tuple(old for old in known.slices if not _same_object(old, new))
        self._store(key, Known(known.service, (*others, new)))
        return touched | self._if_service(key)

    def _remove_slice(self, gone: ObjectKey) -> set[ServiceKey]:
        siblings = self._service_of.get((gone.kind, gone.namespace), {})
        if gone.name not in siblings:
            return set()
        key = (gone.namespace, siblings.pop(gone.name))
        known = self.lookup(key)
        rest = tuple(old for old in known.slices if old.key != gone)
        self._store(key, Known(known.service, rest))
        return self._if_service(key)

    def _if_service(self, key: ServiceKey) -> set[ServiceKey]:
        return {key} if self.lookup(key).service else set()

    def _store(self, key: ServiceKey, known: Known) -> None:
        if known.service or known.slices:
            self._known[key] = known
        else:
            self._known.pop(key, None)


def _same_object(first: EndpointSlice, second: EndpointSlice) -> bool:
    return first.name == second.name and first.kind == second.kind
