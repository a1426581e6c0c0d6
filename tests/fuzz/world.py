"""A random world: Services, their endpoints, clients, and what the specification says of them.

Objects are cases of ``tests/specification``, so two sides that share no code read them: the
product makes entries of them, and the specification says what a first packet must meet.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from bpfsvc.base.address import endpoint_text, pack, unpack
from bpfsvc.model import read_object
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import ServiceEntries
from bpfsvc.services.rules.context import NodeContext
from bpfsvc.services.rules.view import evaluate as entries_of_service
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING
from bpfsvc.services.scheduling.schedulers import parse_scheduler
from tests.fuzz.frames import PROTOCOLS, End
from tests.specification.answers import config_of
from tests.specification.endpoints import endpoints
from tests.specification.frontends import frontends
from tests.specification.objects import service_ports
from tests.specification.verdicts import Verdict, evaluate

NODE = "node-a"
NODE_ADDRESS = {4: "192.168.50.11", 6: "fd50::11"}
CLIENTS = {
    4: ["10.244.1.5", "10.244.1.6", "192.168.50.9", "203.0.113.7", "10.244.2.7"],
    6: ["fd44:0:0:1::5", "fd44:0:0:1::6", "fd50::9", "2001:db8::7", "fd44:0:0:2::7"],
}
"""Pods of this node, clients from outside, and a pod of another node. Some are endpoints, too."""
ENDPOINTS = {
    4: ["10.244.1.6", "10.244.1.7", "10.244.2.7", "10.244.2.8", "10.244.3.8"],
    6: ["fd44:0:0:1::6", "fd44:0:0:1::7", "fd44:0:0:2::7", "fd44:0:0:2::8", "fd44:0:0:3::8"],
}
LOCAL = 2
"""So many of them are on this node, the first ones."""
SERVICES = 4
SCHEDULER = "bpfsvc.io/scheduler"
SCHEDULERS = ("rr", "wrr", "lc", "wlc", "sed", "nq", "dh", "sh", "mh", "lblc", "lblcr", "twos")
"""All choose from the same endpoints. Some count the connections of each."""
PORTS = (80, 443)
SOURCE_PORTS = (40000, 40001, 40002, 12345)
"""Few, so that connections meet. The last is one that a masquerade may have, too."""


_SLICE = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
_SERVICE = {"apiVersion": "v1", "kind": "Service"}


class Target(NamedTuple):
    """Where a client sends to. ``service_port``: whose frontend it is; empty: nobody's."""

    protocol: str
    end: End
    service_port: tuple[object, ...] = ()


_Asked = tuple[int, int, int, tuple[bool, ...]]
"""A target, a client, their family, and for a target of no Service which Services are removed."""


class World:
    """The objects of a history, as they are now, and what follows from them."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self._verdicts: dict[_Asked, Verdict] = {}
        self.services = [_service(number, random) for number in range(SERVICES)]
        self.removed = [False] * SERVICES
        self.slices: list[list[dict[str, Any]]] = [[] for _ in range(SERVICES)]
        for number in range(SERVICES):
            self.rewrite(number, random.getrandbits(32))
            self.removed[number] = False
        self.targets: dict[int, list[Target]] = {}
        self.endpoints_of_all = {
            (pack(address), 8080) for addresses in ENDPOINTS.values() for address in addresses
        }
        self.targets = self._targets()

    def case(self, only: tuple[object, ...] = ()) -> dict[str, Any]:
        """Return the objects in the format of the specification's cases; ``only``: of a Service."""
        there = [
            number
            for number in range(SERVICES)
            if not self.removed[number] and only in ((), self._key(number))
        ]
        return {
            "id": "history",
            "title": "history",
            "category": "history",
            "modes": ["iptables", "nftables"],
            "node": {
                "name": NODE,
                "ips": list(NODE_ADDRESS.values()),
                "primary": {"IPv4": NODE_ADDRESS[4], "IPv6": NODE_ADDRESS[6]},
                "zone": "zone-a",
            },
            "cluster_cidr": ["10.244.0.0/16", "fd44::/48"],
            "nodeport_addresses": [],
            "service_cidrs": ["10.96.0.0/16", "fd96::/112"],
            "options": {},
            "services": [self.services[number] for number in there],
            "endpointslices": [part for number in there for part in self.slices[number]],
        }

    def rewrite(self, number: int, seed: int) -> None:
        """Give a Service other endpoints; one time in eight remove it instead, or keep none."""
        random = Random(seed)
        self.removed[number] = random.randrange(8) == 0
        self.slices[number] = _slices(self.services[number], random)
        # No two Services have one frontend, so what is said of the other Services stays.
        changed = self._key(number)
        for asked in [asked for asked in self._verdicts if self._service_of(asked) == changed]:
            del self._verdicts[asked]

    def _key(self, number: int) -> tuple[str, str]:
        metadata = self.services[number]["metadata"]
        return metadata["namespace"], metadata["name"]

    def _service_of(self, asked: _Asked) -> tuple[object, ...]:
        target, _, family, _ = asked
        return self.targets[family][target].service_port[:2]

    def endpoints(self, service_port: tuple[object, ...]) -> set[str]:
        """Return all endpoints of a service port, eligible or not; none if it is removed."""
        case = self.case()
        for port in service_ports(case):
            if port.identity == service_port:
                return {endpoint.text for endpoint in endpoints(case, port)}
        return set()

    def entries(self, number: int) -> tuple[tuple[str, str], ServiceEntries]:
        """Return the key of a Service and the entries that the product makes of it now."""
        key, case = self._key(number), self.case()
        if self.removed[number]:
            return key, {}
        cluster = Cache(NODE)
        for raw in self.slices[number]:
            cluster.apply(read_object({**_SLICE, **raw}), ())
        service = self.services[number]
        cluster.apply(read_object({**_SERVICE, **service}), ())
        name = service["metadata"].get("annotations", {}).get(SCHEDULER)
        scheduling = USUAL_SCHEDULING
        if name:
            scheduling = scheduling._replace(scheduler=parse_scheduler(name))
        node = NodeContext(NODE, "zone-a", tuple(map(pack, NODE_ADDRESS.values())))
        found = cluster.lookup(key)
        return key, entries_of_service(*found, node, config_of(case), scheduling).entries

    def verdict(self, target: int, client: int, family: int) -> Verdict:
        """Return what the specification says of a first packet from a client to a target."""
        protocol, (address, port), service_port = self.targets[family][target]
        # A target without a Service may have the address of a cluster IP, but asks for no endpoint.
        removed = () if service_port else tuple(self.removed)
        key = target, client, family, removed
        known = self._verdicts.get(key)
        if known is None:
            source = CLIENTS[family][client]
            is_pod = client < LOCAL
            flow = {
                "id": "flow",
                "from": "pod" if is_pod else "external",
                "src_ip": source,
                "proto": protocol,
                "dst_ip": unpack(address),
                "dst_port": port,
                "in_iface": "veth1" if is_pod else "eth0",
            }
            known = self._verdicts[key] = evaluate(self.case(service_port[:2]), flow)
        return known

    def _targets(self) -> dict[int, list[Target]]:
        made: dict[int, list[Target]] = {4: [], 6: []}
        for frontend in frontends(self.case()):
            family = frontend.port.family
            address = str(frontend.address) if frontend.address else NODE_ADDRESS[family]
            end = pack(address), frontend.number
            made[family].append(Target(frontend.port.protocol, end, frontend.port.identity))
        for family, others in ((4, ("10.96.0.10", "10.96.77.77")), (6, ("fd96::10", "fd96::7777"))):
            # A port of a cluster IP without a frontend, an address that no Service has, and
            # addresses that have nothing to do with Services.
            for protocol in PROTOCOLS:
                made[family] += [Target(protocol, (pack(address), 9)) for address in others]
                stranger = "198.51.100.1" if family == 4 else "2001:db8:77::1"
                made[family].append(Target(protocol, (pack(stranger), 80)))
                # Backends, whom clients may ask directly, too.
                made[family] += [
                    Target(protocol, (pack(address), 8080)) for address in ENDPOINTS[family][::2]
                ]
        return made


def _service(number: int, random: Random) -> dict[str, Any]:
    kind = random.choice(["ClusterIP", "NodePort", "LoadBalancer"])
    v4, v6 = f"10.96.0.{10 + number}", f"fd96::{10 + number}"
    ports = []
    for index, port in enumerate(PORTS):
        protocol = random.choice(list(PROTOCOLS))
        entry: dict[str, Any] = {"name": f"p{index}", "protocol": protocol, "port": port}
        if kind != "ClusterIP":
            entry["nodePort"] = 30000 + 10 * number + index
        ports.append(entry)
    spec: dict[str, Any] = {
        "type": kind,
        "clusterIP": v4,
        "clusterIPs": [v4, v6],
        "ipFamilies": ["IPv4", "IPv6"],
        "ports": ports,
        "internalTrafficPolicy": random.choice(["Cluster", "Cluster", "Local"]),
    }
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = random.choice(["Cluster", "Local"])
    if random.randrange(3) == 0:
        spec["sessionAffinity"] = "ClientIP"
        seconds = random.choice([60, 10800])
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": seconds}}
    if random.randrange(2):
        spec["externalIPs"] = [f"203.0.113.{100 + number}", f"2001:db8:5::{number}"]
    metadata: dict[str, Any] = {"namespace": "default", "name": f"svc{number}"}
    if random.randrange(2):
        metadata["annotations"] = {SCHEDULER: random.choice(SCHEDULERS)}
    made = {"metadata": metadata, "spec": spec}
    if kind == "LoadBalancer":
        ips = (f"198.51.100.{100 + number}", f"2001:db8:6::{number}")
        made["status"] = {"loadBalancer": {"ingress": [{"ip": ip} for ip in ips]}}
        if random.randrange(2):
            spec["loadBalancerSourceRanges"] = ["203.0.113.0/25", "10.244.1.0/24", "2001:db8::/64"]
    return made


def _slices(service: dict[str, Any], random: Random) -> list[dict[str, Any]]:
    metadata = service["metadata"]
    empty = random.randrange(6) == 0
    made = []
    for family, name in ((4, "IPv4"), (6, "IPv6")):
        count = 0 if empty else random.randint(1, 4)
        points = []
        for index in sorted(random.sample(range(len(ENDPOINTS[family])), count)):
            draining = random.randrange(6) == 0
            points.append(
                {
                    "addresses": [ENDPOINTS[family][index]],
                    "nodeName": NODE if index < LOCAL else "node-b",
                    "conditions": {
                        "ready": not draining,
                        "serving": True,
                        "terminating": draining,
                    },
                }
            )
        made.append(
            {
                "metadata": {
                    "namespace": metadata["namespace"],
                    "name": f"{metadata['name']}-{family}",
                    "labels": {"kubernetes.io/service-name": metadata["name"]},
                },
                "addressType": name,
                "ports": [
                    {"name": port["name"], "protocol": port["protocol"], "port": 8080}
                    for port in service["spec"]["ports"]
                ],
                "endpoints": points,
            }
        )
    return made


def endpoint_of(end: End) -> str:
    """Return an end as the specification writes endpoints."""
    return endpoint_text(*end)
