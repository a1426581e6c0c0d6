"""Clusters of any size: many similar Services and their EndpointSlices.

The objects have all fields of a real cluster, ``managedFields`` too, because a client must read
them all.
"""

from __future__ import annotations

import ipaddress

from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.apiserver.store import Store, timestamp
from bpfsvc.devtools.lab.objects import Object

_PORT, _TARGET = 80, 8080
_NODES = ("node-1", "node-2")
_VIPS = ipaddress.ip_address("10.97.0.0")
_PODS = ipaddress.ip_address("10.128.0.0")
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_PORT_FIELDS: Object = {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}
_SERVICE_FIELDS: Object = {
    "f:spec": {
        "f:internalTrafficPolicy": {},
        "f:ports": {".": {}, f'k:{{"port":{_PORT},"protocol":"TCP"}}': _PORT_FIELDS},
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


def fill(store: Store, services: int, endpoints: int, namespace: str) -> None:
    """Put Services of so many endpoints each, spread over two nodes."""
    created = timestamp()
    service_fields = _managed("kubectl", "v1", created, _SERVICE_FIELDS)
    slice_fields = _managed(
        "kube-controller-manager", "discovery.k8s.io/v1", created, _SLICE_FIELDS
    )
    for number in range(services):
        service = _service(number, namespace)
        service["metadata"]["managedFields"] = service_fields
        uid = store.put(service).uid
        made = _slice(number, endpoints, namespace, uid)
        made["metadata"]["managedFields"] = slice_fields
        store.put(made)


def _service(number: int, namespace: str) -> Object:
    name = f"web-{number:05}"
    return objects.service(
        name,
        [str(_VIPS + number)],
        [objects.port(_PORT, "http", targetPort=_TARGET)],
        namespace,
        labels={"app": name},
        selector={"app": name},
        sessionAffinity="None",
        ipFamilyPolicy="SingleStack",
        internalTrafficPolicy="Cluster",
    )


def _slice(number: int, endpoints: int, namespace: str, uid: str) -> Object:
    name = f"web-{number:05}"
    backends = []
    for index in range(endpoints):
        address, node = _PODS + number * endpoints + index, _NODES[index % len(_NODES)]
        pod = {"kind": "Pod", "namespace": namespace, "name": f"{name}-{index}", "uid": uid}
        backend = objects.endpoint(str(address), node, serving=True, terminating=False)
        backends.append(backend | {"targetRef": pod, "zone": "zone-a"})
    made = objects.endpoint_slice(
        name,
        backends,
        [objects.port(_TARGET, "http")],
        namespace,
        name=f"{name}-x7k2p",
        labels={
            "app": name,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        },
        annotations={_TRIGGER: timestamp()},
    )
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": uid}
    owners = [owner | {"controller": True, "blockOwnerDeletion": True}]
    made["metadata"] |= {"generateName": f"{name}-", "ownerReferences": owners}
    return made


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
