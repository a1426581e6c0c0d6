"""Pods whose sockets are met by the hooks, and how a test knows who translated a call.

The hooks leave the first calls of a namespace to tc; a test that is about them begins with pods
that they know. What tc translated is noted in the connections of the node, what a hook did is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bpfsvc import address
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.inspection.namespaces import namespaces
from bpfsvc.inspection.reader import PinnedReader
from bpfsvc.lab.dial import ask
from bpfsvc.lab.node import Node
from bpfsvc.lab.pod import Pod
from tests.lab.scene import ONE, Scene

CALLS = 3
"""After which the hooks know a namespace: one to learn from, one to try, one to be sure."""


@contextmanager
def opened(node: Node) -> Iterator[Pinned]:
    """Open the maps of a node's agent."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        yield pinned
    finally:
        pinned.close()


def acquaint(scene: Scene, *pods: Pod) -> None:
    """Let pods (default: all) make the calls after which the hooks know them."""
    for pod in pods or scene.lab.pods:
        # To a pod of another node, for the way to itself is always tc's.
        other = ONE[2] if pod.node is scene.lab.nodes[0] else ONE[0]
        for family in scene.lab.families:
            for _ in range(CALLS):
                ask(pod, other.vip(family), 80)
            assert state(pod, family) == "proven"


def known(node: Node) -> list[dict[str, Any]]:
    """Give what the hooks of a node know of namespaces, as ``maps dump`` does."""
    with opened(node) as pinned:
        found = namespaces(PinnedReader(pinned))
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def state(pod: Pod, family: int) -> str:
    """Give how much is known of a pod's packets of a family."""
    wanted = pod.address(family)
    found = [row["state"] for row in known(pod.node) if row["address"] == wanted]
    return str(found[0]) if found else "unknown"


def by_packets(node: Node, client: str) -> bool:
    """Whether tc of a node knows a flow of ``client``, an ``address:port``."""
    host, _, port = client.rpartition(":")
    wanted = (address.pack(host.strip("[]")), int(port))
    with opened(node) as pinned:
        flow = pinned.layout.maps["connections"].key
        rows = (
            flow.unpack(key)
            for name in ("connections", "new_connections")
            for key, _ in pinned.map(name).items()
        )
        return any((row["source"], row["source_port"]) == wanted for row in rows)
