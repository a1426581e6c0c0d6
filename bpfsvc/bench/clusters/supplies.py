"""Where the agents under measurement get a cluster from: files, or an API server.

Files are replaced by a rename, as a careful writer does it. The API server is a process of its own
on the machine outside the nodes; the moment of a change is when it takes the change.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol

from bpfsvc.bench.clusters.objects import (
    ENDPOINTS,
    Format,
    as_text,
    measured,
    slice_file,
    write_cluster,
)
from bpfsvc.bench.processes.children import ROOT, ProcessFailed
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.objects import node
from bpfsvc.lab.supply import PORT, kubeconfig

_PATIENCE = 120.0  # seconds for a request
_CROWD = "crowd"


class Supply(Protocol):
    """A cluster of some size, one of whose slices changes."""

    def fill(self, services: int, backend: str, port: int) -> None:
        """Let there be so many Services; ``backend`` serves the measured one."""
        ...

    def flags(self) -> list[str]:
        """Give the flags by which an agent finds it."""
        ...

    def prepare(self, value: dict[str, Any]) -> None:
        """Have a slice ready that is to replace the one of its name."""
        ...

    def release(self) -> float:
        """Replace it, and give the moment just before (``CLOCK_MONOTONIC``, seconds)."""
        ...


class Files:
    """One file for each object below ``directory``."""

    def __init__(self, directory: Path, text: Format) -> None:
        self._directory = directory
        self._manifests = directory / "manifests"
        self._text = text
        self._beside = directory / "following"
        self._target = self._manifests

    def fill(self, services: int, backend: str, port: int) -> None:
        """Write all files."""
        write_cluster(self._manifests, services, backend, port, self._text)

    def flags(self) -> list[str]:
        """Name the directory."""
        return ["--manifests", str(self._manifests)]

    def prepare(self, value: dict[str, Any]) -> None:
        """Write it beside its place."""
        name = value["metadata"]["labels"]["kubernetes.io/service-name"]
        self._target = slice_file(self._manifests, name, self._text)
        self._beside.write_text(as_text(value, self._text))

    def release(self) -> float:
        """Rename it."""
        moment = time.monotonic()
        os.replace(self._beside, self._target)  # noqa: PTH105 - nothing but the rename is timed
        return moment


class Server:
    """An API server in ``place``, reached by the nodes at ``address``."""

    def __init__(
        self, directory: Path, place: Namespace, address: str, nodes: Sequence[Node]
    ) -> None:
        self._place, self._address, self._nodes = place, address, nodes
        self._next: dict[str, Any] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(f"http://{address}:{PORT}")))
        words = ["-m", "bpfsvc.lab.apiserver", "--listen", f"{address}:{PORT}"]
        self._process = place.popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], _PATIENCE)[0] or not stream.readline():
            raise ProcessFailed("the API server does not start")

    def fill(self, services: int, backend: str, port: int) -> None:
        """Let it fill itself, and put the measured one beside."""
        if others := services - 1:
            self.ask("fill", services=others, endpoints=ENDPOINTS, namespace=_CROWD)
        objects = [node(each.name, each.addresses.values()) for each in self._nodes]
        self.ask("put", objects=[*objects, *measured(backend, port)])

    def flags(self) -> list[str]:
        """Name a kubeconfig, and a file for the last good state."""
        kept = self.kubeconfig.with_name("last-good")
        return ["--kubeconfig", str(self.kubeconfig), "--last-good", str(kept)]

    def prepare(self, value: dict[str, Any]) -> None:
        """Keep it."""
        self._next = value

    def release(self) -> float:
        """Put it."""
        return float(self.ask("put", objects=[self._next])["monotonic"])

    def ask(self, word: str, **values: Any) -> dict[str, Any]:
        """Ask for something below ``/control/``."""
        talk = HTTPConnection(self._address, PORT)
        talk.sock = self._place.socket(2)
        try:
            talk.sock.settimeout(_PATIENCE)
            talk.sock.connect((self._address, PORT))
            talk.request("POST", f"/control/{word}", json.dumps(values))
            answer = json.loads(talk.getresponse().read() or b"null")
        finally:
            talk.close()
        if isinstance(answer, dict) and "error" in answer:
            raise ProcessFailed(f"the API server on {word}: {answer['error']}")
        return dict(answer or {})
