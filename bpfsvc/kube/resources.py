"""The resources that are read from the API server: their paths and selectors.

The selectors are kube-proxy's (docs/semantics.md 1.1). They leave out the Services and endpoints
that concern no proxy; an object that gains the label arrives as deleted, one that loses it as
added.
"""

from __future__ import annotations

from typing import NamedTuple

_NOT_PROXIED_ELSEWHERE = "!service.kubernetes.io/service-proxy-name"
_NOT_HEADLESS = "!service.kubernetes.io/headless"

Query = tuple[tuple[str, str], ...]


class Variant(NamedTuple):
    """One API version and kind in which a server may offer a resource."""

    kind: str
    group: str
    version: str
    plural: str
    query: Query = ()

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of all objects of all namespaces."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/{self.plural}"

    @property
    def role_name(self) -> str:
        """Its name as roles write it: ``endpointslices.discovery.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Resource(NamedTuple):
    """A resource to follow, in the first of ``variants`` that the server has.

    ``optional``: a server may lack it or forbid it, and the agent works without.
    """

    name: str
    variants: tuple[Variant, ...]
    optional: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds its objects may have."""
        return tuple(dict.fromkeys(variant.kind for variant in self.variants))


SERVICES = Resource(
    "services",
    (
        Variant(
            "Service",
            "",
            "v1",
            "services",
            (
                ("labelSelector", _NOT_PROXIED_ELSEWHERE),
                ("fieldSelector", "spec.clusterIP!=None"),
            ),
        ),
    ),
)
ENDPOINTS = Resource(
    "endpointslices",
    (
        Variant(
            "EndpointSlice",
            "discovery.k8s.io",
            "v1",
            "endpointslices",
            (("labelSelector", _NOT_HEADLESS),),
        ),
        Variant("Endpoints", "", "v1", "endpoints", (("labelSelector", _NOT_HEADLESS),)),
    ),
)
SERVICE_CIDRS = Resource(
    "servicecidrs",
    (
        Variant("ServiceCIDR", "networking.k8s.io", "v1", "servicecidrs"),
        Variant("ServiceCIDR", "networking.k8s.io", "v1beta1", "servicecidrs"),
    ),
    optional=True,
)


def pods(node_name: str) -> Resource:
    """Return the resource that is the pods of a Node; their annotations can turn features off."""
    query = (("fieldSelector", f"spec.nodeName={node_name}"),)
    return Resource("pods", (Variant("Pod", "", "v1", "pods", query),), optional=True)


def node(name: str) -> Resource:
    """Return the resource that is one Node."""
    query = (("fieldSelector", f"metadata.name={name}"),)
    return Resource("node", (Variant("Node", "", "v1", "nodes", query),))
