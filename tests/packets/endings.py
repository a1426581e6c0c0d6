"""The ways in which a TCP connection ends."""

from __future__ import annotations

import pytest

from tests.packets.node import Node, tcp
from tests.packets.scene import Scene

ENDINGS = pytest.mark.parametrize("ending", ["FIN both ways", "RST by client", "RST by backend"])


def end(node: Node, scene: Scene, ending: str, client: str, seen: str) -> None:
    """End the connection that a client has through the scene's frontend to its backend."""
    if ending == "FIN both ways":
        scene.close(node, client, scene.vip, scene.backend, seen)
    elif ending == "RST by client":
        node.forward(tcp(client, scene.vip, "R"))
    else:
        node.forward(tcp(scene.backend, seen, "R"))
