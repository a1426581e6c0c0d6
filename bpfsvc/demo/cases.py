"""The seven kinds of traffic: who asks whom, who must answer, and as whom the backend sees it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bpfsvc.demo import objects
from bpfsvc.demo.objects import (
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
from bpfsvc.demo.stage import Stage
from bpfsvc.lab import dial
from bpfsvc.lab.dial import Answer
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.pod import Pod

REQUESTS = 100
_SHARE = (0.25, 0.75)
"""Where a half may lie among REQUESTS: a fair coin leaves it once in a million times."""

_ENOUGH = 3
"""Failures after which a check gives up: each may take seconds."""


@dataclass(slots=True)
class Check:
    """One thing that was tried, and what came of it."""

    sentence: str
    faults: list[str] = field(default_factory=list)
    shares: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    remark: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.faults


class Case(NamedTuple):
    """A kind of traffic: its title, and the checks, made while they are iterated over."""

    title: str
    checks: Callable[[Stage], Iterator[Check]]


Seen = Callable[[Answer, str], str]
"""What is wrong with how the backend saw the client, given its host; empty: nothing."""


def check(
    place: Namespace,
    target: Target,
    pods: Collection[str],
    seen: Seen,
    *,
    requests: int = REQUESTS,
) -> Check:
    """Ask again and again, each time anew; judge who answers, how often, and what it saw."""
    found = Check(f"{place.name} → {target}", requests=requests)
    wrong: Counter[str] = Counter()
    for _ in range(requests):
        try:
            answer = dial.ask(place, *target)
        except OSError as error:
            wrong[dial.outcome(error)] += 1
            if wrong.total() < _ENOUGH:
                continue
            break
        found.shares[answer.pod] += 1
        if reason := seen(answer, host(answer.peer)):
            wrong[reason] += 1
        if answer.remote != target.endpoint:
            wrong[f"the client was answered by {answer.remote}"] += 1
    found.faults += [f"{reason} ({count} times)" for reason, count in wrong.items()]
    found.faults += _unfair(found.shares, pods, requests)
    return found


def _unfair(shares: Counter[str], pods: Collection[str], requests: int) -> Iterator[str]:
    strangers = set(shares) - set(pods)
    if strangers:
        yield f"answered by {', '.join(sorted(strangers))}, which is no backend"
    low, high = (bound * requests for bound in _SHARE)
    for pod in pods:
        if len(pods) > 1 and not low <= shares[pod] <= high:
            yield f"{pod} answered {shares[pod]} of {requests}"


def host(place: str) -> str:
    """Give the address of ``address:port``."""
    return place.rpartition(":")[0].strip("[]")


def as_itself(place: Namespace) -> Seen:
    """The backend must see the client's own address."""
    own = _addresses(place)
    return lambda _, peer: "" if peer in own else f"the backend saw {peer}, not the client"


def as_node(node: Node) -> Seen:
    """The backend must see an address of the node."""
    own = _addresses(node)
    return lambda _, peer: "" if peer in own else f"the backend saw {peer}, no address of the node"


def _addresses(place: Namespace) -> set[str]:
    return {
        record.get_attr("IFA_LOCAL") or record.get_attr("IFA_ADDRESS")
        for record in place.netlink.get_addr()
    }


# -- the cases --


def pod_to_cluster_ip(stage: Stage) -> Iterator[Check]:
    """One backend is on the pod's node, the other is not."""
    seen = as_itself(stage.shell)
    for target in (NGINX, HOSTNAMES, MY_SERVICE, WEB_V6, DNS, DNS_V6):
        yield check(stage.shell, target, NGINX_PODS, seen)
    yield check(stage.shell, SVC_A, [objects.SVC_A_POD[0]], seen, requests=20)


def hairpin(stage: Stage) -> Iterator[Check]:
    """A pod asks its own Service: half of its requests come back to itself, as from the node."""
    for pod in stage.nginx:
        for target in (NGINX, DNS_V6):
            yield check(pod, target, NGINX_PODS, _as_node_to_itself(pod))


def _as_node_to_itself(pod: Pod) -> Seen:
    node, itself = as_node(pod.node), as_itself(pod)

    def seen(answer: Answer, peer: str) -> str:
        return (node if answer.pod == pod.name else itself)(answer, peer)

    return seen


def node_itself(stage: Stage) -> Iterator[Check]:
    """Sockets are led to a backend when they connect: no connection is noted for any packet."""
    node = stage.nodes[0]
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
    noted = json.loads(stage.bpfsvc(node, "maps", "dump", "connections", "-o", "json"))
    own = _addresses(node)
    rewritten = [row for row in noted["connections"] if host(row["client"]) in own]
    yield Check(
        f"{node.name}: none of these packets was rewritten",
        faults=[f"{len(rewritten)} connections are noted"] if rewritten else [],
    )


def outside_to_node_port(stage: Stage) -> Iterator[Check]:
    """Cluster policy: any backend, which sees the node the client went to."""
    for node in stage.nodes:
        for target in (
            Target(node.address(), objects.NGINX_NODEPORT),
            Target(node.address(6), objects.WEB_NODEPORT),
            Target(node.address(), objects.DNS_NODEPORT, "udp"),
        ):
            yield check(stage.client, target, NGINX_PODS, as_node(node))


def outside_to_local_node_port(stage: Stage) -> Iterator[Check]:
    """Local policy: only the node's own pod, which sees the client."""
    for node, pod in zip(stage.nodes, stage.nginx, strict=True):
        target = Target(node.address(), objects.HOSTNAMES_NODEPORT)
        yield check(stage.client, target, [pod.name], as_itself(stage.client), requests=50)


def external_addresses(stage: Stage) -> Iterator[Check]:
    """Outside addresses, from a pod and from outside: Cluster policy masquerades both."""
    entrance = stage.nodes[0]
    for target in EXTERNAL:
        stage.client.route(target.address, entrance)
        yield check(stage.shell, target, NGINX_PODS, as_node(stage.shell.node))
        yield check(stage.client, target, NGINX_PODS, as_node(entrance))


def strangers_to_cluster_ip(stage: Stage) -> Iterator[Check]:
    """Clients outside the cluster CIDR are masqueraded, be they a client or a foreign pod."""
    entrance = stage.nodes[0]
    for target in (NGINX, WEB_V6):
        stage.client.route(target.address, entrance)
        yield check(stage.client, target, NGINX_PODS, as_node(entrance))
    yield check(stage.pod_a, NGINX, NGINX_PODS, as_node(entrance))


CASES = (
    Case("pod to ClusterIP: the backend sees the pod's own address", pod_to_cluster_ip),
    Case("a pod to itself through its Service (hairpin): seen as the node", hairpin),
    Case("the node's own processes, by socket: ClusterIP, NodePort, 127.0.0.1", node_itself),
    Case("outside to NodePort, Cluster policy: seen as the node", outside_to_node_port),
    Case("outside to NodePort, Local policy: the client's address", outside_to_local_node_port),
    Case("external IP and load balancer's address, from pods and outside", external_addresses),
    Case("outside the cluster CIDR to ClusterIP: masqueraded", strangers_to_cluster_ip),
)
