"""Pods that the socket hooks know, and how a test finds out what translated a call.

The hooks leave the first calls of a namespace to tc, so a test of the hooks begins with pods that
they know. A call that tc translates has an entry in the node's connections; a call that a hook
translates has none.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bpfsvc.base import address
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.inspect.maps.namespaces import namespaces
from bpfsvc.inspect.reader import PinnedReader
from tests.lab.test_traffic_interfaces import attached
from tests.lab.testbed import ONE, Testbed

CALLS = 3
"""Calls after which the hooks know a namespace: one to learn, one to try, one to confirm."""


@contextmanager
def opened(node: LabNode) -> Iterator[Pinned]:
    """Open the maps of a node's agent."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        yield pinned
    finally:
        pinned.close()


@contextmanager
def unknown_pod(node: LabNode) -> Iterator[LabPod]:
    """Add a pod to a node until the end; the programs are attached, and do not know it yet."""
    pod = node.add_pod("new-pod")
    wait(lambda: attached(node, pod), "the programs are attached")
    yield pod
    pod.remove()


def make_known(testbed: Testbed, *pods: LabPod) -> None:
    """Make the calls from pods (default: all) after which the hooks know them."""
    for pod in pods or testbed.lab.pods:
        # To a pod of another node: calls of a pod to itself always go by tc.
        other = ONE[2] if pod.node is testbed.lab.nodes[0] else ONE[0]
        for family in testbed.lab.families:
            for _ in range(CALLS):
                ask(pod, other.vip(family), 80)
            assert state(pod, family) == "proven"


def known(node: LabNode) -> list[dict[str, Any]]:
    """Return the hooks' entries of namespaces on a node, as ``maps dump`` does."""
    with opened(node) as pinned:
        found = namespaces(PinnedReader(pinned))
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def state(pod: LabPod, family: int) -> str:
    """Return the hooks' state of a pod for a family."""
    wanted = pod.address(family)
    seen = [row["state"] for row in known(pod.node) if row["address"] == wanted]
    return str(seen[0]) if seen else "unknown"


def by_packets(node: LabNode, client: str) -> list[str]:
    """Return the flows of ``client``, an ``address:port``, that tc on a node has entries for.

    Each is a protocol and a destination, such as ``UDP 10.96.0.1:80``.
    """
    host, _, port = client.rpartition(":")
    wanted = (address.pack(host.strip("[]")), socket.htons(int(port)))
    with opened(node) as pinned:
        codec = pinned.layout.maps["connections"].key.pick(*TranslatedFlow._fields)
        flows = [
            TranslatedFlow(*codec.unpack(key))
            for name in ("connections", "new_connections")
            for key, _ in pinned.map(name).items()
        ]
    return [
        f"{PROTOCOL_NAMES[flow.protocol]} "
        + address.endpoint_text(flow.destination, socket.ntohs(flow.destination_port))
        for flow in flows
        if (flow.source, flow.source_port) == wanted
    ]
