"""The ports of masqueraded sockets on the fast path."""

from __future__ import annotations

from bpfsvc.devtools.lab.dial import ask
from tests.lab.fast_path import Counts, fast
from tests.lab.testbed import FAMILIES, ONE


def test_datagrams_of_a_masqueraded_socket_keep_their_port() -> None:
    """Egress has nothing to do for those after the first; else they would get another port."""
    with fast(layout="routed", cni_masquerade=True) as routed:
        for family in FAMILIES:
            counts = Counts(routed.node, family)
            node_port = routed.node.address(family), ONE[2].node_port
            seen = {ask(routed.pod, *node_port, "udp", source=("", 43210)).peer for _ in range(4)}
            (peer,) = seen
            address = routed.leaving(routed.lab.pods[2], routed.node, family)
            assert peer.rpartition(":")[0].strip("[]") == address
            counts.all_fast(least=8)
