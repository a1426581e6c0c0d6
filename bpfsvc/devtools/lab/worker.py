"""The process that makes sockets in a node's namespace *and* cgroup.

A socket always belongs to the network namespace and the cgroup of the task that created it, even if
another process uses it; the kernel's socket hooks use the socket's cgroup, not the caller's cgroup.
So one small process per node suffices: it creates sockets and passes their descriptors, and tests
use them as if they ran on the node.

It uses the standard library only (see ``namespace.script``). On its end of a Unix
socket pair a request is one JSON array [family, type, protocol, count]; the answer is "+" and
``count`` descriptors, or ``errno`` as text.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

LIMIT = 200
"""Sockets in one answer: the kernel passes at most 253 descriptors in a message."""


def answer(line: socket.socket) -> bool:
    """Serve one request; return False when the other side has closed."""
    request = line.recv(4096)
    if not request:
        return False
    family, kind, protocol, count = json.loads(request)
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            made.append(socket.socket(family, kind, protocol))
    except OSError as error:
        line.send(str(error.errno).encode())
    else:
        socket.send_fds(line, [b"+"], [descriptor.fileno() for descriptor in made])
    for descriptor in made:
        descriptor.close()
    return True


def main(words: Sequence[str]) -> None:
    """Serve on the descriptor ``words[0]`` until the other side closes its end."""
    with socket.socket(fileno=int(words[0])) as line:
        while answer(line):
            pass
