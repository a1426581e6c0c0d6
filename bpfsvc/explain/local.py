"""The node of a question that is asked with manifests: this machine, or what a Node describes."""

from __future__ import annotations

from bpfsvc.config import Config
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.explain.situation import Situation
from bpfsvc.model import Node
from bpfsvc.node import addresses
from bpfsvc.nodeports import resolve


def situation_of(node: Node, config: Config, *, is_this_machine: bool) -> Situation:
    """Give the node's side. Of this machine, the addresses of its interfaces count too."""
    own = _own_addresses() if is_this_machine else set()
    return Situation(
        node=node,
        detection=config.detection,
        config=config.services(node),
        addresses=tuple(sorted(own | set(node.addresses))),
        node_ports=resolve(config.nodeport_addresses, node, localhost=config.localhost_nodeports),
    )


def _own_addresses() -> set[bytes]:
    with Conversation() as talk:
        return addresses(read_network(talk))
