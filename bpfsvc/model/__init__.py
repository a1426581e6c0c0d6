"""The objects of the API as the agent keeps them, and how they are read.

``values`` holds the values, ``wire`` the API's own shape, ``reading`` the way from one to the
other. Everything else imports from here.
"""

from __future__ import annotations

from bpfsvc.model.reading import read_json, read_object
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
    "Port",
    "Service",
    "ServiceCIDR",
    "SlicePort",
    "Traits",
    "path_text",
    "read_json",
    "read_object",
]
