"""The scene that most tests of traffic share: a lab, its agents, and a standing set of Services.

Every Service has a TCP and a UDP port 80 in both families, so one table of names serves all tests.
Addresses end in the same digits in both families.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bpfsvc.lab.cluster import Cluster
from bpfsvc.lab.dial import Protocol
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.objects import Object, Place, port, service, slices
from bpfsvc.lab.pod import Pod
from bpfsvc.lab.topology import Lab

FAMILIES = (4, 6)
TRANSPORTS: tuple[Protocol, ...] = ("tcp", "udp")

NETWORKS: dict[str, dict[str, Any]] = {
    "routed": {"layout": "routed"},
    "bridge": {"layout": "bridge"},
    "routed-vxlan": {"layout": "routed", "overlay": "vxlan"},
    "bridge-vxlan-masquerade": {"layout": "bridge", "overlay": "vxlan", "cni_masquerade": True},
}

SLICE_PORTS = (port(8080, "web"), port(8080, "dns", "UDP"))
API_PORTS = (port(6443, "web"), port(6443, "dns", "UDP"))

EXTERNAL = {4: "80.11.12.10", 6: "2001:db8:80::10"}
INGRESS = {4: "80.11.12.20", 6: "2001:db8:80::20"}


class Named(NamedTuple):
    """Where a Service of the scene is found."""

    name: str
    number: int

    def vip(self, family: int) -> str:
        """Give its cluster IP."""
        return f"10.96.0.{self.number}" if family == 4 else f"fd96::{self.number}"

    @property
    def node_port(self) -> int:
        """Give its NodePort, for both protocols."""
        return 30000 + self.number


WEB = Named("web", 10)  # all pods; external and load balancer addresses
LOCAL = Named("local", 11)  # externalTrafficPolicy Local, pods of node-1 only
EMPTY = Named("empty", 12)  # nobody
API = Named("kubernetes", 13)  # the nodes themselves
TWIN = Named("twin", 14)  # the same backend as ONE[2]
ONE = tuple(Named(f"one-{number}", 20 + number) for number in range(4))  # one pod each


def host(endpoint: str) -> str:
    """Give the address of an ``address:port`` text."""
    return endpoint.rpartition(":")[0].strip("[]")


def at(address: str, number: int) -> str:
    """Give the ``address:port`` text."""
    return f"[{address}]:{number}" if ":" in address else f"{address}:{number}"


def objects(
    of: Named,
    backends: Sequence[Place],
    ports: Sequence[Object] = SLICE_PORTS,
    families: Sequence[int] = FAMILIES,
    **spec: Any,
) -> list[Object]:
    """Give a Service of the scene and its slices."""
    made = service(
        of.name,
        [of.vip(family) for family in families],
        [port(80, "web", nodePort=of.node_port), port(80, "dns", "UDP", nodePort=of.node_port)],
        type="NodePort",
        **spec,
    )
    return [made, *slices(of.name, backends, ports)]


class Scene(NamedTuple):
    """A lab whose nodes have agents."""

    lab: Lab
    cluster: Cluster

    @property
    def node(self) -> Node:
        """The node that tests look from."""
        return self.lab.nodes[0]

    @property
    def pod(self) -> Pod:
        """The pod that tests ask from: the first of the first node."""
        return self.lab.pods[0]

    @property
    def client(self) -> Namespace:
        """The machine outside."""
        return self.lab.client

    def leaving(self, backend: Pod, node: Node, family: int) -> str:
        """Give the address a node masquerades to on the way to ``backend``.

        It is the address of the interface the packet leaves by, or, where that has none (a routed
        pod), that of the default route's: what the kernel itself would choose for a new packet.
        """
        if backend.node is not node:
            tunnelled = node.tunnel is not None
            return str(
                node.pod_cidrs[family].network_address if tunnelled else node.addresses[family]
            )
        return str(node.gateways[family] if node.bridge is not None else node.addresses[family])


@contextmanager
def built(*, served: bool = False, **network: Any) -> Iterator[Scene]:
    """Build a lab with a server in every pod, and a cluster whose agents are not started yet.

    ``served``: the agents will ask an API server, which is on the machine outside.
    """
    with Lab(**network) as lab:
        lab.serve()
        at_client = (lab.client, str(lab.client.addresses[lab.families[0]]))
        with Cluster(lab, served=at_client if served else None) as cluster:
            yield Scene(lab, cluster)


@contextmanager
def standing(**network: Any) -> Iterator[Scene]:
    """Build a lab with agents and the Services above."""
    with built(**network) as scene:
        lab, cluster = scene
        for node in lab.nodes:
            node.serve(6443)
        local = list(lab.nodes[0].pods.values())
        every = {
            WEB: objects(
                WEB, lab.pods, externalIPs=list(EXTERNAL.values()), ingress=list(INGRESS.values())
            ),
            LOCAL: objects(LOCAL, local, externalTrafficPolicy="Local"),
            EMPTY: objects(EMPTY, []),
            API: objects(API, lab.nodes, API_PORTS),
            TWIN: objects(TWIN, lab.pods[2:3]),
        } | {one: objects(one, [pod]) for one, pod in zip(ONE, lab.pods, strict=True)}
        cluster.put("services", *itertools.chain.from_iterable(every.values()))
        for network_ in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            lab.client.route(network_, via=lab.nodes[0])
        cluster.start()
        yield scene
