"""Processes started in a testbed that answer line by line.

Processes in Python are started bare, with the standard library alone, as in the lab: that takes
20 ms. A process runs on the core given to it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.lab.namespace import Namespace, script
from bpfsvc.devtools.lab.patience import readable

ROOT = Path(__file__).parents[3]
"""Where the package lies; ``python -m bpfsvc`` finds it from there."""


class ProcessFailed(BpfsvcError):
    """A measuring process ended or did not answer."""


class LineProcess:
    """A process that answers each line with one line of JSON, within ``patience`` seconds.

    ``options``: for ``subprocess.Popen``.
    """

    patience = 60.0

    def __init__(
        self, namespace: Namespace, name: str, command: Sequence[str | Path], **options: Any
    ) -> None:
        self._name = f"{name} in {namespace.name}"
        self._received = b""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = namespace.popen(command, **pipes, **options)
        self.pid = self._process.pid

    def ask(self, *words: object) -> Any:
        """Send a request as a JSON array and return the answer."""
        self.send(*words)
        return self.receive()

    def ask_text(self, line: str) -> Any:
        """Send a line as it is and return the answer."""
        self._write(line)
        return self.receive()

    def send(self, *words: object) -> None:
        """Send a request as a JSON array."""
        self._write(json.dumps(words))

    def receive(self) -> Any:
        """Wait for an answer and return it. Raises ProcessFailed if none comes."""
        stream = self._process.stdout
        assert stream is not None
        while b"\n" not in self._received:
            # Not by readline: it would hide a second line from select.
            if not readable(stream, self.patience):
                raise ProcessFailed(f"{self._name} does not answer")
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise ProcessFailed(f"{self._name} has ended")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()


def udp_server(namespace: Namespace, port: int, core: int, word: str) -> None:
    """Start a server on an IPv4 port that answers every datagram with ``word``.

    Its socket is ready for clients when this returns.
    """
    with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("0.0.0.0", port))
        words = ("server", str(core), str(made.fileno()), word)
        namespace.popen(script("bench.datagrams", *words), pass_fds=(made.fileno(),))
