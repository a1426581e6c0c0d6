"""Clusters of any size: many similar Services and their EndpointSlices, which change on request.

The objects have all fields of a real cluster, ``managedFields`` too, because a client must read
them all. The address of the first endpoint of a Service is the one that changes.
"""

from __future__ import annotations

import ipaddress
import time
from datetime import UTC, datetime
from typing import NamedTuple

from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.apiserver.store import Store, timestamp
from bpfsvc.devtools.lab.objects import Object

PORT, TARGET = 80, 8080

_VIPS = int(ipaddress.ip_address("10.97.0.0"))
_PODS = int(ipaddress.ip_address("10.128.0.0"))
_MOVED = int(ipaddress.ip_address("10.200.0.0"))
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_PORT_FIELDS: Object = {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}
_SERVICE_FIELDS: Object = {
    "f:spec": {
        "f:internalTrafficPolicy": {},
        "f:ports": {".": {}, f'k:{{"port":{PORT},"protocol":"TCP"}}': _PORT_FIELDS},
        "f:selector": {},
        "f:sessionAffinity": {},
        "f:type": {},
    }
}
_SLICE_FIELDS: Object = {
    "f:addressType": {},
    "f:endpoints": {},
    "f:metadata": {
        "f:annotations": {".": {}, f"f:{_TRIGGER}": {}},
        "f:generateName": {},
        "f:labels": {
            ".": {},
            "f:endpointslice.kubernetes.io/managed-by": {},
            "f:kubernetes.io/service-name": {},
        },
        "f:ownerReferences": {".": {}},
    },
    "f:ports": {},
}


class Sent(NamedTuple):
    """A change: when it was made, by two clocks, and its revision."""

    monotonic: float
    unix: float
    version: int


class Crowd:
    """``services`` Services of ``endpoints`` endpoints each, spread over the ``nodes``."""

    def __init__(
        self,
        store: Store,
        services: int,
        endpoints: int = 4,
        *,
        namespace: str = "crowd",
        nodes: tuple[str, ...] = ("node-1", "node-2"),
    ) -> None:
        self.services = services
        self._store = store
        self._endpoints = endpoints
        self._namespace = namespace
        self._nodes = nodes
        self._turns: dict[int, int] = {}
        created = timestamp()
        self._service_fields = _managed("kubectl", "v1", created, _SERVICE_FIELDS)
        self._slice_fields = _managed(
            "kube-controller-manager", "discovery.k8s.io/v1", created, _SLICE_FIELDS
        )
        self._uids: list[str] = []

    @staticmethod
    def name(number: int) -> str:
        """Return the name of a Service."""
        return f"web-{number:05}"

    @staticmethod
    def address(number: int) -> str:
        """Return the cluster IP of a Service."""
        return str(ipaddress.ip_address(_VIPS + number))

    def first(self, number: int) -> str:
        """Return the present address of the first endpoint of a Service."""
        turn = self._turns.get(number, 0)
        if not turn:
            return str(ipaddress.ip_address(_PODS + number * self._endpoints))
        return str(ipaddress.ip_address(_MOVED + number * 256 + (turn - 1) % 256))

    def fill(self) -> None:
        """Put all objects."""
        for number in range(self.services):
            self._uids.append(self._store.put(self._service(number)).uid)
            self._store.put(self._slice(number, timestamp()))

    def change(self, number: int) -> Sent:
        """Move the first endpoint of a Service to an address that it did not have lately."""
        self._turns[number] = self._turns.get(number, 0) + 1
        unix, monotonic = time.time(), time.monotonic()
        trigger = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        record = self._store.put(self._slice(number, trigger))
        return Sent(monotonic, unix, record.version)

    def _service(self, number: int) -> Object:
        name = self.name(number)
        made = objects.service(
            name,
            [self.address(number)],
            [objects.port(PORT, "http", targetPort=TARGET)],
            self._namespace,
            labels={"app": name},
            selector={"app": name},
            sessionAffinity="None",
            ipFamilyPolicy="SingleStack",
            internalTrafficPolicy="Cluster",
        )
        made["metadata"]["managedFields"] = self._service_fields
        return made

    def _slice(self, number: int, trigger: str) -> Object:
        name = self.name(number)
        pods = _PODS + number * self._endpoints
        addresses = [str(ipaddress.ip_address(pods + each)) for each in range(self._endpoints)]
        addresses[:1] = [self.first(number)]
        made = objects.endpoint_slice(
            name,
            [self._endpoint(number, each, address) for each, address in enumerate(addresses)],
            [objects.port(TARGET, "http")],
            self._namespace,
            name=f"{name}-x7k2p",
            labels={
                "app": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            annotations={_TRIGGER: trigger},
        )
        owner = {
            "apiVersion": "v1",
            "kind": "Service",
            "name": name,
            "uid": self._uids[number],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        made["metadata"] |= {
            "generateName": f"{name}-",
            "ownerReferences": [owner],
            "managedFields": self._slice_fields,
        }
        return made

    def _endpoint(self, number: int, index: int, address: str) -> Object:
        node = self._nodes[index % len(self._nodes)]
        pod = {
            "kind": "Pod",
            "namespace": self._namespace,
            "name": f"{self.name(number)}-{index}",
            "uid": self._uids[number],
        }
        made = objects.endpoint(address, node, serving=True, terminating=False)
        return made | {"targetRef": pod, "zone": "zone-a"}


def _managed(manager: str, version: str, moment: str, fields: Object) -> list[Object]:
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": version,
            "time": moment,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
    ]
