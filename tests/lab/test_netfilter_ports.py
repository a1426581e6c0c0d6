"""Netfilter beside bpfsvc, each with connections of its own from the node to one backend.

Netfilter's rules choose from the masquerade range, so that what happens to few of thousand
connections beside kube-proxy happens to each: two connections with one 5-tuple.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.dial import OpenConnection, Protocol, ask, connect
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.testbed import API, API_PORTS, FAMILIES, TRANSPORTS, WEB, objects

PORTS = range(10000, 10004)

_serial = itertools.count(20000)

RULES = """
table {family} other {{
  chain postrouting {{ type nat hook postrouting priority 100
    {family} saddr {node} {family} daddr {pod} {protocol} dport 8080 snat to {to}:{ports}
  }}
}}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node with two pods that serve."""
    with Lab("routed", nodes=1) as made:
        made.serve()
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> Iterator[LabCluster]:
    """Its agent has four masquerade ports."""
    with LabCluster(lab) as made:
        made.put("services", *objects(WEB, [lab.pods[0]]))
        made.start(
            lab.nodes[0],
            options=("--socket-lb", "off", "--masquerade-ports", f"{PORTS[0]}-{PORTS[-1]}"),
        )
        yield made


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Rules:
    """What the node masquerades by netfilter, of its own connections to the pod."""

    def __init__(self, lab: Lab, family: int, stack: ExitStack) -> None:
        self._node, self._pod, self._family = lab.nodes[0], lab.pods[0], family
        self._name = "ip6" if family == 6 else "ip"
        self._stack = stack

    def write(self, protocol: Protocol, ports: str) -> None:
        """Have netfilter choose one of ``ports``."""
        node = self._node.address(self._family)
        text = RULES.format(
            family=self._name,
            node=node,
            pod=self._pod.address(self._family),
            protocol=protocol,
            to=f"[{node}]" if self._family == 6 else node,
            ports=ports,
        )
        self._node.run(["nft", "-f", "-"], input=text)
        self._stack.callback(self._node.run, ["nft", "delete", "table", self._name, "other"])

    def forget(self) -> None:
        """Have netfilter forget its connections, so that each of the ports is free for it.

        The programs remember those that they have seen, until the agent asks netfilter.
        """
        self._node.run(["conntrack", "-F"])
        pinned = Pinned(PinRoot(self._node.pin_root).current)
        try:
            noted = pinned.map("netfilter_flows")
            noted.delete_many([key for key, _ in noted.items()])
        finally:
            pinned.close()


@pytest.fixture
def rules(lab: Lab, family: int) -> Iterator[Rules]:
    with ExitStack() as stack:
        rules = Rules(lab, family, stack)
        rules.forget()
        yield rules


def port_of(peer: str) -> int:
    return int(peer.rpartition(":")[2])


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_connection_that_netfilter_moves_to_a_port_of_ours_is_answered(
    lab: Lab, rules: Rules, family: int, protocol: Protocol
) -> None:
    """And so is ours, that has the port."""
    node, pod = lab.nodes[0], lab.pods[0]
    service = node.address(family), WEB.node_port
    client = lab.client.address(family), next(_serial)
    ours = ask(lab.client, *service, protocol, source=client)
    assert port_of(ours.peer) in PORTS
    rules.write(protocol, str(port_of(ours.peer)))
    for _ in range(3):
        rules.forget()
        theirs = ask(node, pod.address(family), 8080, protocol)
        assert theirs.peer != ours.peer
        assert port_of(theirs.peer) in PORTS
        if protocol == "udp":
            assert ask(lab.client, *service, protocol, source=client).peer == ours.peer


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("order", ["ours first", "netfilter's first", "in turn"])
def test_both_have_connections_from_one_range_and_each_is_answered(
    lab: Lab, rules: Rules, family: int, order: str
) -> None:
    """Four ports, two connections of each."""
    node, pod = lab.nodes[0], lab.pods[0]
    rules.write("tcp", f"{PORTS[0]}-{PORTS[-1]}")
    ours, theirs = (
        (lab.client, node.address(family), WEB.node_port),
        (
            node,
            pod.address(family),
            8080,
        ),
    )
    turns = {
        "ours first": [ours, ours, theirs, theirs],
        "netfilter's first": [theirs, theirs, ours, ours],
        "in turn": [ours, theirs, ours, theirs],
    }
    with ExitStack() as stack:
        held: list[OpenConnection] = [
            stack.enter_context(connect(*opened)) for opened in turns[order]
        ]
        assert {port_of(opened.who().peer) for opened in held} == set(PORTS)
        for _ in range(2):
            assert all(opened.echo(bytes(10_000)) for opened in held)


def test_a_pods_connection_through_a_service_leaves_from_the_port_that_egress_gave_it(
    family: int,
) -> None:
    """The backend is no pod, so a CNI masquerades what ingress has translated."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab("routed", nodes=2))
        node, other = lab.nodes
        other.serve(6443)
        cluster = stack.enter_context(LabCluster(lab))
        cluster.put("services", *objects(API, [other], API_PORTS))
        ports = f"{PORTS[0]}-{PORTS[-1]}"
        cluster.start(node, options=("--socket-lb", "off", "--masquerade-ports", ports))
        ours = stack.enter_context(connect(lab.client, node.address(family), API.node_port))
        taken = ours.who().peer
        assert port_of(taken) in PORTS
        ip = "ip6" if family == 6 else "ip"
        rule = f"{ip} saddr {lab.pods[0].address(family)} tcp dport 6443 snat to {taken}"
        chain = f"type nat hook postrouting priority 100\n{rule}\n"
        node.run(["nft", "-f", "-"], input=f"table {ip} cni {{\nchain cni {{\n{chain}}}\n}}\n")
        theirs = stack.enter_context(connect(lab.pods[0], API.vip(family), 80))
        assert theirs.who().peer != taken
        for _ in range(2):
            assert all(opened.echo(bytes(10_000)) for opened in (ours, theirs))
