"""The network of comparisons with ip_vs: addresses here, destinations that do not answer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping

_BITS = {4: 32, 6: 128}


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True)


def make_network(
    device: str, addresses: Mapping[int, Iterable[str]], router: Mapping[int, str]
) -> None:
    """Add ``addresses`` of both families to the node, and routes to destinations by a ``device``.

    No packet returns by that one. ``router``: its own addresses, with the length of their networks.
    """
    ip("link", "set", "lo", "up")
    ip("link", "add", device, "type", "dummy")
    ip("link", "set", device, "up")
    for family, bits in _BITS.items():
        for address in addresses[family]:
            ip("address", "add", f"{address}/{bits}", "dev", "lo")
    ip("address", "add", router[4], "dev", device)
    ip("-6", "address", "add", router[6], "dev", device, "nodad")
