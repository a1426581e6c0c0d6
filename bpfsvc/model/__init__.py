"""The objects of the API as frozen values, and how they are read from JSON and YAML.

May import base. ``wire`` has the API's own structure, ``values`` what the agent keeps, ``reading``
converts one into the other, ``archive`` stores values as bytes. Other rooms import from here.
"""

from __future__ import annotations

from bpfsvc.model.answers import PodPlace
from bpfsvc.model.reading import read_json, read_object, read_pod_places
from bpfsvc.model.values import (
    EndpointSlice,
    ModelObject,
    Network,
    Node,
    ObjectKey,
    Pod,
    Port,
    Service,
    ServiceCIDR,
    SlicePort,
    Traits,
)
from bpfsvc.model.wire import ObjectError, path_text

__all__ = [
    "EndpointSlice",
    "ModelObject",
    "Network",
    "Node",
    "ObjectError",
    "ObjectKey",
    "Pod",
    "PodPlace",
    "Port",
    "Service",
    "ServiceCIDR",
    "SlicePort",
    "Traits",
    "path_text",
    "read_json",
    "read_object",
    "read_pod_places",
]
