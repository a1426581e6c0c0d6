"""Where the measured agents get a cluster from: files, or an API server.

Files are replaced by a rename, as a careful writer does it. The API server is a process of its own
on the machine outside the nodes; the moment of a change is when it accepts the change. (The lab's
supplies are for tests: their server is a thread of the test.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bpfsvc.devtools.bench.cluster import (
    ENDPOINTS,
    Format,
    as_text,
    measured,
    slice_file,
    write_cluster,
)
from bpfsvc.devtools.bench.line_process import ROOT, ProcessFailed
from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import readable
from bpfsvc.devtools.lab.supply import PORT, kubeconfig

_PATIENCE = 120.0  # seconds for a request
_FILLERS = "crowd"


class BenchFiles:
    """One file for each object below ``directory``."""

    def __init__(self, directory: Path, text: Format) -> None:
        self._manifests = directory / "manifests"
        self._text = text
        self._fresh = directory / "fresh"
        self._target = self._manifests

    def fill(self, services: int, backend: str, port: int) -> None:
        """Write all files; ``backend`` serves the measured Service."""
        write_cluster(self._manifests, services, backend, port, self._text)

    def flags(self) -> list[str]:
        """Return the agent's flags: the directory."""
        return ["--manifests", str(self._manifests)]

    def prepare(self, value: dict[str, Any]) -> None:
        """Write an EndpointSlice that is to replace the one of its Service."""
        name = value["metadata"]["labels"][objects.SERVICE_NAME]
        self._target = slice_file(self._manifests, name, self._text)
        self._fresh.write_text(as_text(value, self._text))

    def release(self) -> float:
        """Rename it; return the moment just before (``CLOCK_MONOTONIC``, seconds)."""
        moment = time.monotonic()
        os.replace(self._fresh, self._target)  # noqa: PTH105 - nothing but the rename is timed
        return moment


class BenchServer:
    """An API server in ``place``, reached by the nodes at ``address``."""

    def __init__(
        self, directory: Path, namespace: Namespace, address: str, nodes: Sequence[LabNode]
    ) -> None:
        self._namespace, self._address, self._nodes = namespace, address, nodes
        self._next: dict[str, Any] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(f"http://{address}:{PORT}")))
        words = [sys.executable, "-m", "bpfsvc.devtools.lab.apiserver", f"{address}:{PORT}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        stream = namespace.popen(words, cwd=ROOT, **pipes).stdout
        assert stream is not None
        if not readable(stream, _PATIENCE) or not stream.readline():
            raise ProcessFailed("the API server does not start")

    def fill(self, services: int, backend: str, port: int) -> None:
        """Have the server make Services, and add the measured one and the nodes."""
        if others := services - 1:
            self.ask("fill", services=others, endpoints=ENDPOINTS, namespace=_FILLERS)
        nodes = [objects.node(node.name, node.addresses.values()) for node in self._nodes]
        self.ask("put", objects=[*nodes, *measured(backend, port)])

    def flags(self) -> list[str]:
        """Return the agent's flags: a kubeconfig, and a file for the snapshot."""
        snapshot = self.kubeconfig.with_name("last-good")
        return ["--kubeconfig", str(self.kubeconfig), "--last-good", str(snapshot)]

    def prepare(self, value: dict[str, Any]) -> None:
        """Keep an EndpointSlice that is to replace the one of its Service."""
        self._next = value

    def release(self) -> float:
        """Write the change; return the moment just before (``CLOCK_MONOTONIC``, seconds)."""
        return float(self.ask("put", objects=[self._next])["monotonic"])

    def ask(self, word: str, **values: Any) -> dict[str, Any]:
        """Send a request below ``/control/`` and return the answer."""
        path, body = f"/control/{word}", json.dumps(values)
        _, text = http_request(self._namespace, self._address, PORT, path, body, _PATIENCE)
        answer = json.loads(text or b"null")
        if isinstance(answer, dict) and "error" in answer:
            raise ProcessFailed(f"the API server on {word}: {answer['error']}")
        return dict(answer or {})
