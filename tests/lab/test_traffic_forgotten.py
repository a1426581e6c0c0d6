"""Connections whose entries are gone: their clients know at once, whatever they connected to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import connect
from bpfsvc.devtools.lab.node import LabNode
from tests.lab.testbed import EXTERNAL, INGRESS, WEB, Testbed

FRONTENDS: dict[str, Callable[[Testbed, int], tuple[str, int]]] = {
    "cluster IP": lambda _, family: (WEB.vip(family), 80),
    "external address": lambda _, family: (EXTERNAL[family], 80),
    "address of a load balancer": lambda _, family: (INGRESS[family], 80),
    "NodePort": lambda testbed, family: (str(testbed.node.addresses[family]), WEB.node_port),
}


def forget_connections(node: LabNode) -> int:
    """Delete all entries of connections; return how many there were."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        keys = [key for key, _ in pinned.map("connections").items()]
        pinned.map("connections").delete_many(keys)
        return len(keys)
    finally:
        pinned.close()


@pytest.mark.parametrize("size", [1, 100_000], ids=["a byte", "many segments"])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_client_whose_connection_is_unknown_is_reset(
    testbed: Testbed, family: int, frontend: str, size: int
) -> None:
    """It waits for two seconds at most; without an answer it would be minutes."""
    with connect(testbed.client, *FRONTENDS[frontend](testbed, family)) as conversation:
        conversation.who()
        assert conversation.echo(b"known")
        assert forget_connections(testbed.node) >= 2
        with pytest.raises(ConnectionResetError):
            conversation.echo(bytes(size))
