"""The testbed that most tests of traffic share: a lab, its agents, and a fixed set of Services.

Every Service has a TCP and a UDP port 80 in both families, so one table of names serves all tests.
Addresses end in the same digits in both families.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bpfsvc.devtools.lab.cluster import LabAgent, LabCluster
from bpfsvc.devtools.lab.dial import Protocol, Reply, ask
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import Host, Object, pod, port, service, slices
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab

FAMILIES = (4, 6)
NO_PORT = (socket.IPPROTO_IP, 24, 1)
"""IP_BIND_ADDRESS_NO_PORT, an option of a socket: the kernel chooses the port at connect()."""

TRANSPORTS: tuple[Protocol, ...] = ("tcp", "udp")

NETWORKS: dict[str, dict[str, Any]] = {
    "routed": {"layout": "routed"},
    "bridge": {"layout": "bridge", "fast_path": "off"},
    "routed-vxlan": {"layout": "routed", "overlay": "vxlan", "fast_path": "off"},
    "bridge-vxlan-masquerade": {"layout": "bridge", "overlay": "vxlan", "cni_masquerade": True},
}
"""Both ways of packets: by the stack, and by the fast path."""

SLICE_PORTS = (port(8080, "web"), port(8080, "dns", "UDP"))
API_PORTS = (port(6443, "web"), port(6443, "dns", "UDP"))

EXTERNAL = {4: "80.11.12.10", 6: "2001:db8:80::10"}
INGRESS = {4: "80.11.12.20", 6: "2001:db8:80::20"}


class Named(NamedTuple):
    """The name and the addresses of a Service of the testbed."""

    name: str
    number: int

    def vip(self, family: int) -> str:
        """Return its cluster IP."""
        return f"10.96.0.{self.number}" if family == 4 else f"fd96::{self.number}"

    @property
    def node_port(self) -> int:
        """Return its NodePort, for both protocols."""
        return 30000 + self.number


WEB = Named("web", 10)  # all pods; external and load balancer addresses
LOCAL = Named("local", 11)  # externalTrafficPolicy Local, pods of node-1 only
EMPTY = Named("empty", 12)  # no endpoints
API = Named("kubernetes", 13)  # the nodes themselves
TWIN = Named("twin", 14)  # the same backend as ONE[2]
ONE = tuple(Named(f"one-{number}", 20 + number) for number in range(4))  # one pod each


def host(endpoint: str) -> str:
    """Return the address of an ``address:port`` text."""
    return endpoint.rpartition(":")[0].strip("[]")


def at(address: str, number: int) -> str:
    """Return the ``address:port`` text."""
    return f"[{address}]:{number}" if ":" in address else f"{address}:{number}"


def ask_until_port_is_kept(
    namespace: Namespace,
    address: str,
    port: int,
    protocol: Protocol = "tcp",
    *,
    connected: bool = True,
) -> Reply:
    """Return the first of three answers whose backend saw the client's own port, or the third.

    A port is changed where the same client still has a connection from it to the same backend
    through another frontend. The system chooses clients' ports, and now and then such a port.
    """
    for _ in range(3):
        answer = ask(namespace, address, port, protocol, connected=connected)
        if answer.peer == answer.own:
            break
    return answer


def objects(
    of: Named,
    backends: Sequence[Host],
    ports: Sequence[Object] = SLICE_PORTS,
    families: Sequence[int] = FAMILIES,
    **spec: Any,
) -> list[Object]:
    """Return a Service of the testbed and its slices."""
    made = service(
        of.name,
        [of.vip(family) for family in families],
        [port(80, "web", nodePort=of.node_port), port(80, "dns", "UDP", nodePort=of.node_port)],
        type="NodePort",
        **spec,
    )
    return [made, *slices(of.name, backends, ports)]


class Testbed(NamedTuple):
    """A lab whose nodes have agents."""

    lab: Lab
    cluster: LabCluster

    @property
    def node(self) -> LabNode:
        """The node of the client pod."""
        return self.lab.nodes[0]

    @property
    def agent(self) -> LabAgent:
        """The agent of that node."""
        return self.cluster.agents[self.node.name]

    @property
    def pod(self) -> LabPod:
        """The client pod of most tests: the first of the first node."""
        return self.lab.pods[0]

    @property
    def client(self) -> Namespace:
        """The external client machine."""
        return self.lab.client

    def leaving(self, backend: LabPod, node: LabNode, family: int) -> str:
        """Return the address a node masquerades to for packets to ``backend``.

        It is the address of the interface towards the backend, or, if that has none (a routed
        pod), for IPv4 that of the interface that was made first, for IPv6 the one that shares most
        bits with the backend's: the kernel would choose the same.
        """
        if backend.node is not node:
            tunnelled = node.tunnel is not None
            return str(
                node.pod_cidrs[family].network_address if tunnelled else node.addresses[family]
            )
        if node.bridge is not None:
            return str(node.gateways[family])
        if node.tunnel is not None and family == 6:
            return str(node.pod_cidrs[family].network_address)
        return str(node.addresses[family])


@contextmanager
def built_testbed(*, served: bool = False, **network: Any) -> Iterator[Testbed]:
    """Build a lab with a server in every pod, and a cluster whose agents are not started yet.

    ``served``: the agents watch an API server, which is on the external client machine.
    """
    with Lab(**network) as lab:
        lab.serve()
        at_client = (lab.client, str(lab.client.addresses[lab.families[0]]))
        with LabCluster(lab, served=at_client if served else None) as cluster:
            yield Testbed(lab, cluster)


def put_pods(testbed: Testbed) -> None:
    """Have the Pod objects of all pods, and wait until the agents know them."""
    pods = (
        pod(lab_pod.name, [lab_pod.address(family) for family in FAMILIES], lab_pod.node.name)
        for lab_pod in testbed.lab.pods
    )
    testbed.cluster.apply("pods", *pods)


def put_one_each(testbed: Testbed) -> None:
    """Have a Service for each pod: those of ``ONE``."""
    for named, lab_pod in zip(ONE, testbed.lab.pods, strict=True):
        testbed.cluster.put(named.name, *objects(named, [lab_pod]))


@contextmanager
def running_testbed(*, fast_path: str = "auto", **network: Any) -> Iterator[Testbed]:
    """Build a lab with agents and the Services above."""
    with built_testbed(**network) as testbed:
        lab, cluster = testbed
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
        cluster.options = ("--fast-path", fast_path)
        cluster.start()
        yield testbed
