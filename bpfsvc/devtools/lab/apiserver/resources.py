"""The resources of the server: their paths, and the selectors of each.

A real server knows some fields of each resource for selectors, and refuses all other fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[str, str]
"""Namespace (empty without one) and name."""

_NAMES = ("metadata.name", "metadata.namespace")
_NODE_INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
)


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """One resource of one version of one API group; the core group has an empty name."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    fields: tuple[str, ...] = _NAMES
    verbs: tuple[str, ...] = ("get", "list", "watch")
    empty: dict[str, Any] = field(default_factory=dict)  # what Go prints for a zero value

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """The path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def described(self) -> str:
        """Its name in messages: ``endpointslices.discovery.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def entry(self) -> dict[str, Any]:
        """Return its entry in the discovery of its group and version."""
        return {
            "name": self.plural,
            "singularName": self.kind.lower(),
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": list(self.verbs),
        }


SERVICES = Resource(
    "",
    "v1",
    "services",
    "Service",
    fields=(*_NAMES, "spec.clusterIP", "spec.type"),
    empty={"spec": {}, "status": {"loadBalancer": {}}},
)
ENDPOINT_SLICES = Resource(
    "discovery.k8s.io",
    "v1",
    "endpointslices",
    "EndpointSlice",
    empty={"addressType": "", "endpoints": None, "ports": None},
)
EVENTS = Resource(
    "events.k8s.io",
    "v1",
    "events",
    "Event",
    fields=(*_NAMES, "reason", "type", "reportingController"),
    verbs=("create", "get", "list", "patch", "watch"),
    empty={"eventTime": None, "regarding": {}},
)
RESOURCES = (
    SERVICES,
    Resource("", "v1", "endpoints", "Endpoints"),
    Resource(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        fields=("metadata.name", "spec.unschedulable"),
        empty={
            "spec": {},
            "status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
            },
        },
    ),
    ENDPOINT_SLICES,
    Resource(
        "",
        "v1",
        "pods",
        "Pod",
        fields=(*_NAMES, "spec.nodeName"),
        empty={"spec": {}, "status": {}},
    ),
    Resource(
        "networking.k8s.io",
        "v1",
        "servicecidrs",
        "ServiceCIDR",
        namespaced=False,
        empty={"spec": {}, "status": {}},
    ),
    EVENTS,
)

_BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}
_BY_NAME = {resource.kind: resource for resource in RESOURCES} | {
    resource.plural: resource for resource in RESOURCES
}
_BY_PLACE = {(resource.prefix, resource.plural): resource for resource in RESOURCES}


def of_object(raw: dict[str, Any]) -> Resource:
    """Return the resource of an object; ``KeyError`` if this server does not have it."""
    return _BY_KIND[raw.get("apiVersion", ""), raw.get("kind", "")]


def named(name: str) -> Resource:
    """Return the resource of a kind (``Service``) or plural (``services``)."""
    return _BY_NAME[name]


class ApiPath(NamedTuple):
    """A parsed path: a collection, perhaps of one namespace, or one object of it."""

    resource: Resource
    namespace: str = ""
    name: str = ""


def parse_path(path: str) -> ApiPath | None:
    """Read a path such as ``/api/v1/namespaces/default/services/web``; None for others."""
    words = path.strip("/").split("/")
    length = 2 if words[0] == "api" else 3
    prefix, rest = "/" + "/".join(words[:length]), words[length:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 2 or (prefix, rest[0]) not in _BY_PLACE:
        return None
    resource = _BY_PLACE[prefix, rest[0]]
    name = rest[1] if len(rest) == 2 else ""
    if (namespace and not resource.namespaced) or (name and resource.namespaced and not namespace):
        return None
    return ApiPath(resource, namespace, name)


def groups(absent: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Return the ``APIGroup`` entries of discovery, without absent groups."""
    versions: dict[str, list[str]] = {}
    for resource in RESOURCES:
        if resource.group and resource.group not in absent:
            versions.setdefault(resource.group, [])
            if resource.version not in versions[resource.group]:
                versions[resource.group].append(resource.version)
    for group, known in versions.items():
        rows = [{"groupVersion": f"{group}/{name}", "version": name} for name in known]
        yield {"name": group, "versions": rows, "preferredVersion": rows[0]}


def below_a_group(path: str, absent: frozenset[str]) -> bool:
    """True for paths below a group that the server has, in any version."""
    words = path.strip("/").split("/")
    known = [group["name"] for group in groups(absent)]
    return len(words) > 1 and (words[0] == "api" or (len(words) > 2 and words[1] in known))


def discovery(path: str, absent: frozenset[str]) -> dict[str, Any] | None:
    """Answer ``/api``, ``/apis``, ``/apis/GROUP`` and ``/apis/GROUP/VERSION``; None for others."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups(absent))}
    for group in groups(absent):
        if path == f"/apis/{group['name']}":
            return {"kind": "APIGroup", "apiVersion": "v1", **group}
    here = [
        resource
        for resource in RESOURCES
        if resource.prefix == path and resource.group not in absent
    ]
    if not here:
        return None
    rows = [resource.entry for resource in here if resource.plural not in absent]
    version = path.removeprefix("/apis/").removeprefix("/api/")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": rows,
    }
