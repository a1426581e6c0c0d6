"""The seven kinds of traffic: client, target, expected backend, and expected source address."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from bpfsvc.devtools.demo import objects
from bpfsvc.devtools.demo.objects import (
    DNS,
    DNS_V6,
    EXTERNAL,
    HOSTNAMES,
    MY_SERVICE,
    NGINX,
    NGINX_PODS,
    SVC_A,
    WEB_V6,
    Target,
)
from bpfsvc.devtools.demo.testbed import DemoTestbed
from bpfsvc.devtools.lab import dial
from bpfsvc.devtools.lab.dial import Reply
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod

REQUESTS = 100
_SHARE = (0.25, 0.75)
"""Where a half may lie among REQUESTS: a fair coin leaves it once in a million times."""

_ENOUGH = 3
"""Failures after which a check gives up: each may take seconds."""


@dataclass(slots=True)
class DemoCheck:
    """One check and its result."""

    sentence: str
    faults: list[str] = field(default_factory=list)
    shares: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    remark: str = ""

    @property
    def passed(self) -> bool:
        """True if nothing was wrong."""
        return not self.faults


Source = Callable[[Reply, str], str]
"""Returns a fault of the source address that the backend saw; empty if it is right."""


def check(
    namespace: Namespace,
    target: Target,
    pods: Collection[str],
    expected: Source,
    *,
    requests: int = REQUESTS,
) -> DemoCheck:
    """Send requests, each on a new connection; check who answers, how often, and the source."""
    check = DemoCheck(f"{namespace.name} → {target}", requests=requests)
    wrong: Counter[str] = Counter()
    for _ in range(requests):
        try:
            answer = dial.ask(namespace, *target)
        except OSError as error:
            wrong[dial.outcome(error)] += 1
            if wrong.total() < _ENOUGH:
                continue
            break
        check.shares[answer.pod] += 1
        if reason := expected(answer, host(answer.peer)):
            wrong[reason] += 1
        if answer.remote != target.endpoint:
            wrong[f"the client was answered by {answer.remote}"] += 1
    check.faults += [f"{reason} ({count} times)" for reason, count in wrong.items()]
    check.faults += _unfair(check.shares, pods, requests)
    return check


def _unfair(shares: Counter[str], pods: Collection[str], requests: int) -> Iterator[str]:
    if others := set(shares) - set(pods):
        yield f"answered by {', '.join(sorted(others))}, which is no backend"
    low, high = (bound * requests for bound in _SHARE)
    for pod in pods:
        if len(pods) > 1 and not low <= shares[pod] <= high:
            yield f"{pod} answered {shares[pod]} of {requests}"


def host(endpoint: str) -> str:
    """Return the address of ``address:port``."""
    return endpoint.rpartition(":")[0].strip("[]")


def as_itself(namespace: Namespace) -> Source:
    """Expect that the backend sees the client's own address."""
    own = _addresses(namespace)
    return lambda _, peer: "" if peer in own else f"the backend saw {peer}, not the client"


def as_node(node: LabNode) -> Source:
    """Expect that the backend sees an address of the node."""
    own = _addresses(node)
    return lambda _, peer: "" if peer in own else f"the backend saw {peer}, no address of the node"


def _addresses(namespace: Namespace) -> set[str]:
    return {
        record.get_attr("IFA_LOCAL") or record.get_attr("IFA_ADDRESS")
        for record in namespace.netlink.get_addr()
    }


# -- the kinds of traffic --


def pod_to_cluster_ip(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """One backend is on the pod's node, the other is not."""
    own = as_itself(testbed.shell)
    for target in (NGINX, HOSTNAMES, MY_SERVICE, WEB_V6, DNS, DNS_V6):
        yield check(testbed.shell, target, NGINX_PODS, own)
    yield check(testbed.shell, SVC_A, [objects.SVC_A_POD[0]], own, requests=20)


def hairpin(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """A pod asks its own Service: half of the requests come back to it, as from the node."""
    for pod in testbed.nginx:
        for target in (NGINX, DNS_V6):
            yield check(pod, target, NGINX_PODS, _as_node_to_itself(pod))


def _as_node_to_itself(pod: LabPod) -> Source:
    node, itself = as_node(pod.node), as_itself(pod)

    def expected(answer: Reply, peer: str) -> str:
        return (node if answer.pod == pod.name else itself)(answer, peer)

    return expected


def node_itself(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """The socket LB chooses a backend at connect(): there are no connection entries."""
    node = testbed.nodes[0]
    targets = [
        NGINX,
        WEB_V6,
        DNS,
        Target(node.address(), objects.NGINX_NODEPORT),
        Target("127.0.0.1", objects.NGINX_NODEPORT),
        Target("127.0.0.1", objects.DNS_NODEPORT, "udp"),
    ]
    for target in targets:
        yield check(node, target, NGINX_PODS, as_node(node))
    dump = json.loads(testbed.bpfsvc(node, "maps", "dump", "connections", "-o", "json"))
    own = _addresses(node)
    rewritten = [row for row in dump["connections"] if host(row["client"]) in own]
    yield DemoCheck(
        f"{node.name}: none of these packets was rewritten",
        faults=[f"{len(rewritten)} connections have entries"] if rewritten else [],
    )


def external_to_node_port(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """Cluster policy: any backend, which sees the node that the client asked."""
    for node in testbed.nodes:
        for target in (
            Target(node.address(), objects.NGINX_NODEPORT),
            Target(node.address(6), objects.WEB_NODEPORT),
            Target(node.address(), objects.DNS_NODEPORT, "udp"),
        ):
            yield check(testbed.client, target, NGINX_PODS, as_node(node))


def external_to_local_node_port(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """Local policy: only the node's own pod, which sees the client."""
    for node, pod in zip(testbed.nodes, testbed.nginx, strict=True):
        target = Target(node.address(), objects.HOSTNAMES_NODEPORT)
        yield check(testbed.client, target, [pod.name], as_itself(testbed.client), requests=50)


def external_addresses(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """Outside addresses, from a pod and from outside: Cluster policy masquerades both."""
    node = testbed.nodes[0]
    for target in EXTERNAL:
        testbed.client.route(target.address, node)
        yield check(testbed.shell, target, NGINX_PODS, as_node(testbed.shell.node))
        yield check(testbed.client, target, NGINX_PODS, as_node(node))


def external_to_cluster_ip(testbed: DemoTestbed) -> Iterator[DemoCheck]:
    """Clients outside the cluster CIDR are masqueraded: an external client, and a foreign pod."""
    node = testbed.nodes[0]
    for target in (NGINX, WEB_V6):
        testbed.client.route(target.address, node)
        yield check(testbed.client, target, NGINX_PODS, as_node(node))
    yield check(testbed.pod_a, NGINX, NGINX_PODS, as_node(node))


KINDS: tuple[tuple[str, Callable[[DemoTestbed], Iterator[DemoCheck]]], ...] = (
    ("pod to ClusterIP: the backend sees the pod's own address", pod_to_cluster_ip),
    ("a pod to itself through its Service (hairpin): seen as the node", hairpin),
    ("the node's own processes, by socket: ClusterIP, NodePort, 127.0.0.1", node_itself),
    ("external client to NodePort, Cluster policy: seen as the node", external_to_node_port),
    ("external client to NodePort, Local policy: its own address", external_to_local_node_port),
    ("external IP and load balancer's address, from pods and outside", external_addresses),
    ("outside the cluster CIDR to ClusterIP: masqueraded", external_to_cluster_ip),
)
"""Titles, and functions that make the checks while their results are iterated over."""
