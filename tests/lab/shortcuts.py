"""A lab on the fast path, beside a netfilter that drops what its conntrack finds invalid.

Such a rule is what makes half a connection fatal: of one that begins past conntrack and ends in it,
the end is invalid. So three counts are kept: packets that took the fast path, packets to and from
pods that netfilter forwarded, and packets that it found invalid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.lab.node import Node
from tests.lab.scene import API, API_PORTS, LOCAL, ONE, WEB, Scene, built, objects

FAST = ("--fast-path",)
_TOOLS = {4: "iptables", 6: "ip6tables"}


def services(scene: Scene) -> None:
    """Give every pod a Service of its own, and all of them one together."""
    pods = scene.lab.pods
    every = [objects(WEB, pods), objects(LOCAL, pods[:1], externalTrafficPolicy="Local")]
    every += [objects(API, scene.lab.nodes[1:], API_PORTS)]
    every += [objects(one, [pod]) for one, pod in zip(ONE, pods, strict=True)]
    scene.cluster.put("services", *(each for one in every for each in one))


def forbid_invalid(node: Node) -> None:
    """Drop in FORWARD what conntrack finds invalid, and count what else there is of pods."""
    for family, pods in node.pod_cidrs.items():
        for rule in (
            ["-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"],
            ["-s", str(pods), "-j", "ACCEPT"],
            ["-d", str(pods), "-j", "ACCEPT"],
        ):
            node.run([_TOOLS[family], "-w", "-A", "FORWARD", *rule])


@contextmanager
def fast(**network: Any) -> Iterator[Scene]:
    """Build a lab whose agents use the fast path, with such rules on the nodes."""
    with built(**network) as scene:
        for node in scene.lab.nodes:
            forbid_invalid(node)
            node.serve(6443)
        services(scene)
        scene.cluster.options = FAST
        scene.cluster.start()
        for node in scene.lab.nodes:
            assert "--fast-path is not used" not in scene.cluster.agents[node.name].log
        yield scene


def taken(node: Node) -> int:
    """Count the packets that took the fast path on a node."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        found = pinned.map("counters")
        record = pinned.layout.maps["counters"].value
        raw, size = found.lookup(bytes(4)) or b"", found.cpu_value_size
        return sum(
            int(record.unpack(raw[at : at + size])["fast_forwarded"])
            for at in range(0, len(raw), size)
        )
    finally:
        pinned.close()


class Counts:
    """What netfilter and the fast path count on a node from now on."""

    def __init__(self, node: Node, family: int) -> None:
        self._node, self._family = node, family
        self._before = self._now()

    def _now(self) -> tuple[int, int, int]:
        listed = self._node.run([f"{_TOOLS[self._family]}-save", "-c"]).stdout
        invalid = forwarded = 0
        for count, rule in re.findall(r"^\[(\d+):\d+\] -A FORWARD (.*)$", listed, re.MULTILINE):
            if "INVALID" in rule:
                invalid += int(count)
            else:
                forwarded += int(count)
        return taken(self._node), forwarded, invalid

    def since(self) -> tuple[int, int, int]:
        """Give packets by the fast path, forwarded by netfilter, and invalid."""
        return tuple(  # type: ignore[return-value]
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )

    def all_fast(self, least: int = 2) -> None:
        """Assert that there were so many packets at least, and that netfilter saw none."""
        by_shortcut, forwarded, invalid = self.since()
        assert by_shortcut >= least
        assert (forwarded, invalid) == (0, 0)
