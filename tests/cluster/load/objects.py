"""The objects of the tests under load: backends, their Services and the clients' pods.

* ``rolled``: backends that the tests replace. As a careful operator would write it: none is
  unavailable during a rollout, and one that ends goes on serving until every client's node has
  heard of it.
* ``kept``: backends that nobody replaces, on the node that is not drained. Held connections lead to
  them.
* ``leaving``: a single backend that a test deletes while connections to it go on.

All serve TCP and UDP, by both families.
"""

from __future__ import annotations

from typing import Any, Final

from tests.cluster import images

NAMESPACE: Final = "under-load"
IMAGE: Final = "docker.io/bpfsvc-test/load:1"

HTTP: Final = 8080
UDP: Final = 8081
DELAY: Final = 15
"""Seconds for which a backend that is to end goes on serving: longer than an agent's restart."""
LEAVING_DELAY: Final = 40
"""The same of ``leaving``: longer than its successor needs to start, and some connections."""

BACKENDS: Final = ("rolled", "kept", "leaving")

Object = dict[str, Any]


def backends(name: str, replicas: int, node: str | None = None, delay: int = DELAY) -> Object:
    """Return a Deployment of agnhost's web server; with ``node``, on that node alone."""
    server: Object = {
        "name": "server",
        "image": images.AGNHOST,
        "args": [
            "netexec",
            f"--http-port={HTTP}",
            f"--udp-port={UDP}",
            f"--delay-shutdown={delay}",
        ],
        # A share of the processors, as every careful workload asks for.
        "resources": {"requests": {"cpu": "100m"}},
        # Patient, as a machine with other work may answer late: not ready means another backend.
        "readinessProbe": {
            "httpGet": {"path": "/", "port": HTTP},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }
    pod: Object = {
        "terminationGracePeriodSeconds": delay + 20,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": name}},
            }
        ],
        "containers": [server],
    }
    if node:
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def service(name: str) -> Object:
    """Return the Service of the backends of that name: a NodePort, dual stack, TCP and UDP."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "NodePort",
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "selector": {"app": name},
            "ports": [
                {"name": "tcp", "port": 80, "targetPort": HTTP},
                {"name": "udp", "port": 81, "targetPort": UDP, "protocol": "UDP"},
            ],
        },
    }


def client(name: str, node: str, host_network: bool, words: list[str]) -> Object:
    """Return a pod of the load generator on a node. ``words``: its command line."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "hostNetwork": host_network,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "load",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": words,
                    "resources": {"requests": {"cpu": "200m"}},
                }
            ],
        },
    }


def namespace() -> Object:
    """Return the namespace of all of them."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
