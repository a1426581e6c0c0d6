"""The recorded rules of a real kube-proxy (tests/migration/verify), on a node of a lab."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.testbed import Testbed
from tests.migration.verify.kube_proxys_rules import Layout, text

_COUNTER = re.compile(r" -m nfacct --nfacct-name +\S+")
"""A counter that iptables-restore does not make."""


@contextmanager
def kube_proxys_rules(testbed: Testbed, *layouts: Layout) -> Iterator[None]:
    """Write the rules of both families; remove them at the end."""
    node = testbed.node
    for layout in layouts:
        for family, tool in ((4, "iptables"), (6, "ip6tables")):
            printed = text(layout, family)
            if layout.startswith("nftables"):
                node.run(["nft", "-j", "-f", "-"], input=_in_order(printed))
            else:
                node.run([f"{tool}-nft-restore", "--noflush"], input=_COUNTER.sub("", printed))
    try:
        yield
    finally:
        for words in (["--yes"], ["--release"]):
            done = testbed.cluster.command(node, "cleanup", "--kube-proxy", *words)
            assert done.returncode == 0, done.stderr


def _in_order(listed: str) -> str:
    """Return what ``nft -j`` listed so that it can be loaded: chains before what leads to them."""
    order = ("table", "counter", "chain", "set", "map", "rule")
    items = json.loads(listed)["nftables"]
    items.sort(key=lambda item: order.index(next(iter(item))))
    return json.dumps({"nftables": [{"add": item} for item in items]})
