"""What ``bpfsvc maps dump`` shows of the traffic: its own output, cut to what one can take in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from bpfsvc.demo.objects import NGINX, NGINX_NODEPORT
from bpfsvc.demo.stage import Stage
from bpfsvc.lab import dial

MAPS = ("frontends", "backends", "connections")
_ROWS = 12


class Dump(NamedTuple):
    """The command, and its output."""

    command: str
    text: str


def dumps(stage: Stage) -> Iterator[Dump]:
    """Dump the maps of the first node while a client and a pod hold connections."""
    node, pod = stage.nodes[0], stage.pod_a
    outside = (node.address(), NGINX_NODEPORT)
    with ExitStack() as held:
        for _ in range(2):
            for place, address, port in ((stage.client, *outside), (pod, *NGINX[:2])):
                held.enter_context(dial.connect(place, address, port)).who()
        for name in MAPS:
            text = stage.bpfsvc(node, "maps", "dump", name)
            yield Dump(f"bpfsvc maps dump {name}", _cut(text, "ESTABLISHED" in text))


def _cut(text: str, only_established: bool) -> str:
    """Leave out connections that are over, and what is too long."""
    title, heads, *rows = text.splitlines()
    shown = [row for row in rows if not only_established or "ESTABLISHED" in row][:_ROWS]
    left = len(rows) - len(shown)
    return "\n".join([title, heads, *shown, *([f"... and {left} more"] if left else [])])
