"""The ways in which a TCP connection ends."""

from __future__ import annotations

import pytest

from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import Peers

ENDINGS = pytest.mark.parametrize("ending", ["FIN both ways", "RST by client", "RST by backend"])


def end(node: Node, peers: Peers, ending: str, client: str, seen: str) -> None:
    """End a client's connection through the frontend ``vip``."""
    if ending == "FIN both ways":
        peers.close(node, client, peers.vip, peers.backend, seen)
    elif ending == "RST by client":
        node.forward(tcp(client, peers.vip, "R"))
    else:
        node.forward(tcp(peers.backend, seen, "R"))
