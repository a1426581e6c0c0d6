"""``bpfsvc explain`` of an address of 127/8: as good as 127.0.0.1 if the node says so."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.explain.programs import decide
from bpfsvc.explain.question import question
from tests.packets.node import Node
from tests.packets.peers import TCP_PEERS

NODE_PORT = 30080


@pytest.mark.parametrize("state", ["", "NODEPORTS_OPEN", "NODEPORTS_OPEN_LOOPBACK"])
def test_a_node_port_at_another_loopback_address(node: Node, state: str) -> None:
    """Without an entry of 127.0.0.1 none is served, and 127.0.0.1 alone by one without that."""
    peers = TCP_PEERS[0]
    peers.service(node, [peers.backend], node_port=NODE_PORT)
    if state:
        layout = node.pinned.layout
        entry = layout.maps["node_addresses"].value.pack({"nodeports": layout.constant(state)})
        node.pinned.map("node_addresses").update(pack("127.0.0.1"), entry)
    verdicts = []
    for address in ("127.0.0.1", "127.1.2.3"):
        asked = question("node", peers.node_address, "TCP", address, NODE_PORT)
        verdicts.append(decide(node.pinned, asked, node.interface).verdict)
    expected = {
        "": ["none", "none"],
        "NODEPORTS_OPEN": ["dnat", "none"],
        "NODEPORTS_OPEN_LOOPBACK": ["dnat", "dnat"],
    }
    assert verdicts == expected[state]


def test_a_frontend_at_the_loopback_address_is_found_by_another_one(node: Node) -> None:
    """It is that of 127.0.0.1, and not that of all addresses of the node."""
    peers = TCP_PEERS[0]
    peers.service(node, [peers.backend], frontends=["127.0.0.1:80"])
    layout = node.pinned.layout
    open_loopback = {"nodeports": layout.constant("NODEPORTS_OPEN_LOOPBACK")}
    entry = layout.maps["node_addresses"].value.pack(open_loopback)
    node.pinned.map("node_addresses").update(pack("127.0.0.1"), entry)
    for address in ("127.0.0.1", "127.1.2.3"):
        asked = question("node", peers.node_address, "TCP", address, 80)
        assert decide(node.pinned, asked, node.interface).verdict == "dnat", address
