"""Services that an agent that has just started must leave as the kernel has them.

Of an object that cannot be read, such an agent knows at most what the snapshot has; the kernel may
hold something newer. The name of a broken object is known, and of a broken slice mostly its
Service. Of a broken file nothing is known: whatever no other file defines may be in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.kube.source import ParseError
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner

_OF_ENDPOINTS = ("EndpointSlice", "Endpoints")


def find_held_back(
    services: Iterable[ServiceKey], errors: Iterable[ParseError], planner: Planner
) -> set[ServiceKey]:
    """Return those of the Services, which the kernel holds, of which a part cannot be read."""
    broken_file = False
    broken: set[ServiceKey] = set()
    of_services: set[ServiceKey] = set()
    of_namespaces: set[str] = set()
    for error in (error for error in errors if error.hides):
        if error.key is None:
            broken_file = True
        elif error.key.kind == "Service":
            broken.add((error.key.namespace, error.key.name))
        elif error.key.kind in _OF_ENDPOINTS:
            if error.service:
                of_services.add(error.service)
            else:
                of_namespaces.add(error.key.namespace)

    def is_held_back(key: ServiceKey) -> bool:
        service, slices = planner.cache.lookup(key)
        if key in broken:
            return True
        if service is None:
            return broken_file
        if key in of_services or key[0] in of_namespaces:
            return True
        return broken_file and service.is_proxied and not slices and planner.has_backends(key)

    return set(filter(is_held_back, services))
