"""``python -m tests.cluster.balancer KUBECONFIG``: a load balancer such as a cloud has one.

It gives every Service of type LoadBalancer an address of each of its families and keeps the
finalizer. The balancer itself are routes, in the network namespace in which this runs: an address
leads to all nodes, or, with ``externalTrafficPolicy: Local``, to those whose health check answers.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from kubernetes.client.exceptions import ApiException
from pyroute2 import IPRoute
from urllib3.exceptions import HTTPError

from tests.cluster.addresses import BALANCER_CIDRS, CLIENTS, NODES, Host
from tests.cluster.watching import Key, Object, Watched, connect, key_of

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"

_PERIOD = 0.3  # seconds between two health checks
_ANSWER = 0.5  # seconds
_MERGE = "application/merge-patch+json"

Address = IPv4Address | IPv6Address
_log = logging.getLogger(__name__)


def is_served(service: Object) -> bool:
    """True if a Service is to have a load balancer of ours."""
    spec, metadata = service["spec"], service["metadata"]
    return (
        spec.get("type") == "LoadBalancer"
        and "loadBalancerClass" not in spec
        and "deletionTimestamp" not in metadata
    )


class Pool:
    """Which Service has which addresses; a Service keeps those that its status names."""

    def __init__(self) -> None:
        self._owners: dict[Address, str] = {}
        self._next = {version: self._round(version) for version in BALANCER_CIDRS}

    def _round(self, version: int) -> Iterator[Address]:
        """Return all addresses of a family in turn, so that a freed one is not used at once."""
        while True:
            yield from BALANCER_CIDRS[version].hosts()

    def of(self, service: Object) -> list[Address]:
        """Return a Service's addresses, new ones if it has none yet."""
        owner, spec = service["metadata"]["uid"], service["spec"]
        status = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        wishes = [statu.get("ip") for statu in status] + [spec.get("loadBalancerIP")]
        wanted = [ip_address(wish) for wish in wishes if wish]
        return [
            self._one(owner, int(family.removeprefix("IPv")), wanted)
            for family in spec["ipFamilies"]
        ]

    def _one(self, owner: str, version: int, wanted: list[Address]) -> Address:
        for address, has in self._owners.items():
            if has == owner and address.version == version:
                return address
        candidates = [entry for entry in wanted if entry.version == version]
        found = next((candidate for candidate in candidates if candidate not in self._owners), None)
        while found is None or found in self._owners:
            found = next(self._next[version])
        self._owners[found] = owner
        return found

    def free(self, owners: set[str]) -> list[Address]:
        """Forget all Services but those given, by their UID; return the freed addresses."""
        freed = [address for address, owner in self._owners.items() if owner not in owners]
        for address in freed:
            del self._owners[address]
        return freed


def hops(service: Object, healthy: list[Host]) -> list[Host]:
    """Return the nodes that a Service's address leads to."""
    # Clouds' balancers keep a client to a node, or the affinity of Local could not hold.
    sticky = service["spec"].get("sessionAffinity") == "ClientIP"
    return healthy[:1] if sticky else healthy


class Routes:
    """The routes of addresses; a route that is as it should be is not touched."""

    def __init__(self) -> None:
        self._netlink = IPRoute()
        self._set: dict[Address, list[Host]] = {}

    def put(self, address: Address, to: list[Host]) -> None:
        """Lead an address to nodes; without any it is unreachable."""
        if self._set.get(address) == to:
            return
        route: dict[str, Any] = {"dst": f"{address}/{address.max_prefixlen}"}
        route["family"] = socket.AF_INET if address.version == 4 else socket.AF_INET6
        gateways = [str(node.addresses[0 if address.version == 4 else 1]) for node in to]
        if gateways:
            route["prefsrc"] = str(CLIENTS[address.version])
            route["multipath"] = [{"gateway": gateway} for gateway in gateways]
        else:
            route["type"] = "unreachable"
        if address in self._set:
            self.remove(address)
        self._netlink.route("replace", **route)
        self._set[address] = to
        _log.info("%s leads to %s", address, ", ".join(node.name for node in to) or "nothing")

    def remove(self, address: Address) -> None:
        """Remove the route of an address."""
        if self._set.pop(address, None) is not None:
            self._netlink.route("del", dst=f"{address}/{address.max_prefixlen}")


class Balancer:
    """The controller: Services in, addresses in their status and routes out."""

    def __init__(self, kubeconfig: Path) -> None:
        self._resource = connect(kubeconfig).resources.get(api_version="v1", kind="Service")
        self._services = Watched(self._resource, threading.Event())
        self._pool = Pool()
        self._routes = Routes()
        self._checkers = ThreadPoolExecutor(4 * len(NODES))

    def run(self) -> None:
        """Serve until killed."""
        while True:
            self._services.changed.wait(_PERIOD)
            self._services.changed.clear()
            services = self._services.objects()
            served = {key: each for key, each in services.items() if is_served(each)}
            for key, service in services.items():
                self._try(self._serve if key in served else self._release, service)
            uids = {service_["metadata"]["uid"] for service_ in served.values()}
            for address in self._pool.free(uids):
                self._routes.remove(address)

    def _try(self, work: Any, service: Object) -> None:
        """Do something for a Service; what fails is done again in the next round."""
        try:
            work(key_of(service), service)
        except (ApiException, HTTPError, OSError) as error:
            name = "/".join(key_of(service))
            _log.warning("%s: %s", name, str(error).partition("\n")[0])

    def _serve(self, key: Key, service: Object) -> None:
        finalizers = service["metadata"].get("finalizers", [])
        if FINALIZER not in finalizers:
            self._set_finalizers(key, service, [*finalizers, FINALIZER])
            return  # the rest when the watch brings the Service
        addresses = self._pool.of(service)
        ingress = [{"ip": str(address), "ipMode": "VIP"} for address in addresses]
        if service.get("status", {}).get("loadBalancer", {}).get("ingress") != ingress:
            self._set_status(key, {"ingress": ingress})
        for address in addresses:
            self._routes.put(address, hops(service, self._healthy(service)))

    def _release(self, key: Key, service: Object) -> None:
        finalizers = service["metadata"].get("finalizers", [])
        if FINALIZER not in finalizers:
            return
        deleted = "deletionTimestamp" in service["metadata"]
        if service["status"].get("loadBalancer", {}).get("ingress") and not deleted:
            self._set_status(key, None)
        left = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        self._set_finalizers(key, service, left)

    def _set_finalizers(self, key: Key, service: Object, finalizers: list[str]) -> None:
        metadata = {
            "finalizers": finalizers,
            # Another's finalizer that came meanwhile is not overwritten: the patch is refused.
            "resourceVersion": service["metadata"]["resourceVersion"],
        }
        self._patch(self._resource, key, {"metadata": metadata})

    def _set_status(self, key: Key, balancer: Object | None) -> None:
        self._patch(self._resource.status, key, {"status": {"loadBalancer": balancer}})

    @staticmethod
    def _patch(resource: Any, key: Key, body: Object) -> None:
        namespace, name = key
        resource.patch(body=body, name=name, namespace=namespace, content_type=_MERGE)

    def _healthy(self, service: Object) -> list[Host]:
        if service["spec"].get("externalTrafficPolicy") != "Local":
            return list(NODES)
        port = service["spec"]["healthCheckNodePort"]
        answers = self._checkers.map(lambda node: _is_healthy(node, port), NODES)
        return [node for node, healthy in zip(NODES, answers, strict=True) if healthy]


def _is_healthy(node: Host, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{node.v4}:{port}/healthz", timeout=_ANSWER) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def main(kubeconfig: str) -> None:
    """Run the balancer."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    Balancer(Path(kubeconfig)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
