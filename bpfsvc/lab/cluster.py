"""Agents on the nodes of a lab, the manifests they read, and how to know that they have.

A cluster is a directory of manifests and one agent per node, each with a pin root, a cgroup and a
log of its own. Nothing here sleeps for a fixed time: what is waited for is an answer of /healthz,
a line of a log, or a row in the kernel.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from bpfsvc import address
from bpfsvc.datapath.layout import Record
from bpfsvc.datapath.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.lab import objects, sandbox
from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.namespace import LabError, Namespace, Process
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import stretched, wait
from bpfsvc.lab.supply import MARK, Files, Served, mark
from bpfsvc.lab.topology import Lab

COMMAND = (sys.executable, "-m", "bpfsvc")
HEALTH_PORT = 10256


class Health(NamedTuple):
    """The answer of ``/healthz``: 0 when nobody answers."""

    status: int
    body: dict[str, Any]


class Agent:
    """One run of an agent, and what it said on standard error."""

    def __init__(self, node: Node, command: Sequence[str], log: Path, **options: Any) -> None:
        self.node = node
        self.log_file = log
        with log.open("wb") as output:
            self.process: Process = node.popen(command, stdout=output, stderr=output, **options)

    @property
    def log(self) -> str:
        """All that was said so far."""
        return self.log_file.read_text()

    def expect(self, text: str, timeout: float = 10.0) -> None:
        """Wait until ``text`` stands in the log; the error shows the log."""
        try:
            wait(lambda: text in self.log, f"{text!r} in the log", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the log is:\n{self.log}") from None

    def health(self) -> Health:
        """Ask for ``/healthz``."""
        talk = HTTPConnection("127.0.0.1", HEALTH_PORT)
        talk.sock = self.node.socket(socket.AF_INET)
        try:
            talk.sock.settimeout(stretched(2))
            talk.sock.connect(("127.0.0.1", HEALTH_PORT))
            talk.request("GET", "/healthz")
            answer = talk.getresponse()
            return Health(answer.status, json.loads(answer.read()))
        except OSError:
            return Health(0, {})
        finally:
            talk.close()

    def ready(self, timeout: float = 30.0) -> None:
        """Wait until it is healthy; ``LabError`` with the log when it ends instead."""

        def healthy() -> bool:
            if self.process.poll() is not None:
                raise LabError(f"the agent of {self.node.name} ended:\n{self.log}")
            return self.health().status == 200

        wait(healthy, f"the agent of {self.node.name} is healthy", timeout)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and give the status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=stretched(10))


class Cluster:
    """A context manager: on entering it has a directory, on leaving its agents end.

    ``nodes``: those that get agents (default all); ``options``: flags for every agent;
    ``served``: a namespace and its address at which an API server takes the place of the directory.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        nodes: Sequence[Node] | None = None,
        options: Sequence[str] = (),
        cgroup_root: Path | None = None,
        served: tuple[Namespace, str] | None = None,
    ) -> None:
        self.lab = lab
        self.nodes = list(lab.nodes if nodes is None else nodes)
        self.options = tuple(options)
        self.agents: dict[str, Agent] = {}
        self._served = served
        self._cgroup_root = cgroup_root
        self._mark = 0
        self._runs = 0

    def __enter__(self) -> Self:
        self.place = Path(tempfile.mkdtemp(prefix="cluster-", dir=sandbox.ROOT))
        self._supply: Files | Served = (
            Served(self.place, *self._served) if self._served else Files(self.place)
        )
        if self._served:
            # An API server without it would be waited for.
            self.put(
                "nodes", *(objects.node(each.name, each.addresses.values()) for each in self.nodes)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for agent in self.agents.values():
            if agent.process.poll() is None:
                agent.process.terminate()
        for agent in self.agents.values():
            agent.process.wait(timeout=stretched(10))
        self._supply.close()
        shutil.rmtree(self.place)

    # -- objects ----------------------------------------------------------------------------------

    @property
    def api(self) -> ApiServer:
        """The API server."""
        assert isinstance(self._supply, Served), "this cluster is a directory"
        return self._supply.server

    def last_good(self, node: Node) -> Path:
        """Give the file in which a node's agent keeps the last good state."""
        assert isinstance(self._supply, Served), "a directory is always there"
        return self._supply.last_good(node.name)

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Let these be the objects under a name."""
        self._supply.put(name, *objects)

    def put_text(self, file: str, text: str) -> None:
        """Write any text as a file of the directory."""
        assert isinstance(self._supply, Files), "this cluster has no directory"
        self._supply.put_text(file, text)

    def drop(self, name: str) -> None:
        """Remove the objects under a name."""
        self._supply.drop(name)

    def apply(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Put objects and wait until every agent has brought them to its kernel."""
        self.put(name, *objects)
        self.settle()

    def settle(self, nodes: Iterable[Node] | None = None, timeout: float = 10.0) -> None:
        """Wait until all that was put before is in the kernel.

        Two marks are set, one after the other: when the second is seen, the change that came with
        the first is complete, deletions included, for agents do one thing after another. A mark is
        a Service and its endpoint, as an API server tells of the two on ways of their own.
        """
        for _ in range(2):
            self._mark = self._mark % 60000 + 1
            self._supply.put("settled", *mark(self._mark))
            for node in self.nodes if nodes is None else nodes:
                wait(
                    partial(self._is_marked, node, self._mark),
                    f"mark {self._mark} in the kernel of {node.name}",
                    timeout,
                )

    def _is_marked(self, node: Node, number: int) -> bool:
        row = self.row(node, MARK, number)
        return row is not None and bool(self._layout(node).unpack(row)["other.size"])

    # -- agents -----------------------------------------------------------------------------------

    def start(self, *nodes: Node, options: Sequence[str] = (), **process: Any) -> None:
        """Start agents (default: on all nodes) and wait until they are healthy.

        ``process``: options of ``subprocess.Popen``; with ``cwd`` the bpfsvc found there runs.
        """
        chosen = nodes or tuple(self.nodes)
        for node in chosen:
            self.launch(node, options=options, **process)
        for node in chosen:
            self.agents[node.name].ready()

    def launch(self, node: Node, *, options: Sequence[str] = (), **process: Any) -> Agent:
        """Start an agent without waiting for it."""
        self._runs += 1
        agent = Agent(
            node,
            [*COMMAND, "run", *self.flags(node), "--pin-root", str(node.pin_root), *options],
            self.place / f"{node.name}-{self._runs}.log",
            **process,
        )
        self.agents[node.name] = agent
        return agent

    def flags(self, node: Node) -> list[str]:
        """Give the flags of a node's agent, but for ``--pin-root``."""
        return [
            *self._supply.flags(node.name),
            # Compiled once for all agents of a run, unless they are of another build.
            "--cache",
            str(sandbox.ROOT / "cache"),
            "--cgroup-root",
            str(self._cgroup_root or node.cgroup),
            "--hostname-override",
            node.name,
            "--cluster-cidr",
            ",".join(str(cidr) for cidr in self.lab.cluster_cidrs.values()),
            *self.options,
        ]

    def stop(self, node: Node) -> None:
        """End an agent in good order; ``LabError`` if it ends in another."""
        agent = self.agents.pop(node.name)
        if status := agent.end():
            raise LabError(f"the agent of {node.name} ended with {status}:\n{agent.log}")

    def kill(self, node: Node) -> None:
        """End an agent by ``kill -9``."""
        self.agents.pop(node.name).end(signal.SIGKILL)

    # -- what came of it --------------------------------------------------------------------------

    def command(
        self,
        node: Node,
        *words: str,
        before: Sequence[str] = (),
        pin_root: Path | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a ``bpfsvc`` command with the node's ``--pin-root`` to its end, whatever its status.

        ``before``: a command that runs it; ``options`` are those of ``subprocess.Popen``.
        """
        process = node.popen(
            [*before, *COMMAND, *words, "--pin-root", str(pin_root or node.pin_root)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        try:
            output, errors = process.communicate(timeout=stretched(30))
        except subprocess.TimeoutExpired as error:
            node.end(process)
            raise LabError(f"{' '.join(words)} goes on and on on {node.name}") from error
        return subprocess.CompletedProcess(words, process.returncode, str(output), str(errors))

    def arrived(
        self,
        node: Node,
        ip: str,
        number: int,
        *,
        not_row: bytes | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Wait until a frontend has a row other than ``not_row`` in the kernel of a node."""
        wait(
            lambda: self.row(node, ip, number) not in (None, not_row),
            f"{ip}:{number} in the kernel of {node.name}",
            timeout,
        )

    def left(self, node: Node, ip: str, number: int) -> None:
        """Wait until a frontend has no row in the kernel of a node."""
        wait(lambda: self.row(node, ip, number) is None, f"{ip}:{number} has left {node.name}")

    def row(self, node: Node, ip: str, number: int, protocol: int = 6) -> bytes | None:
        """Give the row of a frontend in the kernel of a node; it differs after every change."""
        try:
            pinned = Pinned(PinRoot(node.pin_root).current)
        except NotLoaded:
            return None
        try:
            key = pinned.layout.maps["frontends"].key.pack(
                {"address": address.pack(ip), "port": number, "protocol": protocol}
            )
            return pinned.map("frontends").lookup(key)
        finally:
            pinned.close()

    def _layout(self, node: Node) -> Record:
        """Give what such a row looks like."""
        pinned = Pinned(PinRoot(node.pin_root).current)
        try:
            return pinned.layout.maps["frontends"].value
        finally:
            pinned.close()
