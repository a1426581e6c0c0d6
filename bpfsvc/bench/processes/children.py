"""Starting the processes of this package in a lab, and talking to them line by line.

They are started bare like those of the lab, with the standard library alone, so that what is
measured is not their start. Each runs on the core it is told.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bpfsvc.errors import BpfsvcError
from bpfsvc.lab.namespace import Namespace

ROOT = Path(__file__).parents[3]
"""Where the package lies; ``python -m bpfsvc`` finds it from there."""

_PATIENCE = 60.0


class ProcessFailed(BpfsvcError):
    """A measuring process ended or did not answer."""


class Talker:
    """A process that answers each line of JSON with one, within ``patience`` seconds."""

    patience = _PATIENCE

    def __init__(self, place: Namespace, name: str, line: Sequence[str | Path]) -> None:
        self._name = f"{name} in {place.name}"
        self._heard = b""
        self._process = place.popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *words: object) -> Any:
        """Send a request and wait for its answer."""
        self.tell(*words)
        return self.hear()

    def tell(self, *words: object) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait for an answer."""
        stream = self._process.stdout
        assert stream is not None
        while b"\n" not in self._heard:
            # Not by readline: it would hide a second line from select.
            if not select.select([stream], [], [], self.patience)[0]:
                raise ProcessFailed(f"{self._name} does not answer")
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise ProcessFailed(f"{self._name} has ended")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)


def command(module: str, *words: str) -> list[str]:
    """Give the command that runs ``main`` of a module of this package.

    ^C in a terminal goes to it too; it is for those who started it to end it.
    """
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.path.append({str(ROOT)!r}); "
        f"from bpfsvc.bench.processes.{module} import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, *words]


def server(
    place: Namespace,
    kind: socket.SocketKind,
    port: int,
    module: str,
    role: str,
    core: int,
    *words: str,
) -> int:
    """Start a server on an IPv4 port of ``place``; give its process id.

    It is ready for clients when this returns, for the socket is.
    """
    with place.socket(socket.AF_INET, kind) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("0.0.0.0", port))
        if kind == socket.SOCK_STREAM:
            made.listen(1024)
        line = command(module, role, str(core), str(made.fileno()), *words)
        return place.popen(line, pass_fds=(made.fileno(),)).pid
