"""What ``bpfsvc maps dump`` prints of the traffic: its own output, cut to a readable length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from bpfsvc.devtools.demo.objects import NGINX, NGINX_NODEPORT
from bpfsvc.devtools.demo.testbed import DemoTestbed
from bpfsvc.devtools.lab import dial

_MAPS = ("frontends", "backends", "connections")
_ROWS = 12


class Dump(NamedTuple):
    """The command, and its output."""

    command: str
    text: str


def dumps(testbed: DemoTestbed) -> Iterator[Dump]:
    """Dump the maps of the first node while a client and a pod hold connections."""
    node, pod = testbed.nodes[0], testbed.pod_a
    node_port = (node.address(), NGINX_NODEPORT)
    with ExitStack() as open_connections:
        for _ in range(2):
            for namespace, address, port in ((testbed.client, *node_port), (pod, *NGINX[:2])):
                open_connections.enter_context(dial.connect(namespace, address, port)).who()
        for name in _MAPS:
            text = testbed.bpfsvc(node, "maps", "dump", name)
            yield Dump(f"bpfsvc maps dump {name}", _cut(text, "ESTABLISHED" in text))


def _cut(text: str, only_established: bool) -> str:
    """Leave out connections that are over, and rows beyond the first ``_ROWS``."""
    title, heads, *rows = text.splitlines()
    shown = [row for row in rows if not only_established or "ESTABLISHED" in row][:_ROWS]
    left = len(rows) - len(shown)
    return "\n".join([title, heads, *shown, *([f"... and {left} more"] if left else [])])
