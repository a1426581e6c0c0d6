"""The node of a question that is asked with manifests: this machine, or what a Node describes."""

from __future__ import annotations

from dataclasses import dataclass

from bpfsvc.cluster import Cluster
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.detection import Detection
from bpfsvc.explain.situation import Situation
from bpfsvc.networks import cidr
from bpfsvc.node import addresses
from bpfsvc.nodeports import resolve
from bpfsvc.surroundings import NodeContext, ServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the node's agent is set up; as the options of ``bpfsvc run``."""

    detection: Detection
    masquerade_all: bool
    source_ranges_for_all: bool
    nodeport_addresses: tuple[str, ...]
    localhost_nodeports: bool
    is_this_machine: bool


def situation_of(cluster: Cluster, setup: Setup) -> Situation:
    """Give the node's side. Of this machine, the addresses of its interfaces count too."""
    node = cluster.node
    families = setup.detection.families(node)
    own = _own_addresses() if setup.is_this_machine else set()
    return Situation(
        node=NodeContext(node.name, node.zone, node.addresses),
        config=ServiceConfig(
            detector_v4=4 in families,
            detector_v6=6 in families,
            masquerade_all=setup.masquerade_all,
            source_ranges_for_all=setup.source_ranges_for_all,
        ),
        addresses=tuple(sorted(own | set(node.addresses))),
        node_ports=resolve(setup.nodeport_addresses, node, localhost=setup.localhost_nodeports),
        pod_networks=tuple(map(cidr, setup.detection.ranges(node).values())),
        is_pod_interface=setup.detection.is_for_pods if setup.detection.by_interface else None,
        service_networks=tuple(map(cidr, sorted(cluster.service_networks()))),
    )


def _own_addresses() -> set[bytes]:
    with Conversation() as talk:
        return addresses(read_network(talk))
