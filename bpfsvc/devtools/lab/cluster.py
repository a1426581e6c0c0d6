"""Agents on the nodes of a lab, their manifests, and how to wait until they are applied.

A cluster is a directory of manifests and one agent per node, each with its own pin root, cgroup
and log. Nothing here sleeps for a fixed time: functions wait for an answer of /healthz, a line of a
log, or an entry in the kernel.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from bpfsvc.base import address
from bpfsvc.datapath.maps.layout import Record
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.devtools.lab import objects, sandbox
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import LabError, Namespace, Process
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.rights import limited
from bpfsvc.devtools.lab.supply import MARK, Files, Served
from bpfsvc.devtools.lab.topology import Lab

COMMAND = (sys.executable, "-m", "bpfsvc")
HEALTH_PORT = 10256

_MARKS = 500
"""Names of marks: an agent keeps some of each name in its caches."""


class LabHealth(NamedTuple):
    """The answer of ``/healthz``; status 0 without an answer."""

    status: int
    body: dict[str, Any]


class LabAgent:
    """One run of an agent, and its log."""

    def __init__(self, node: LabNode, command: Sequence[str], log: Path, **options: Any) -> None:
        self.node = node
        self.log_file = log
        with log.open("wb") as output:
            self.process: Process = node.popen(command, stdout=output, stderr=output, **options)

    @property
    def log(self) -> str:
        """The whole log so far."""
        return self.log_file.read_text()

    def expect(self, text: str, timeout: float = 10.0) -> None:
        """Wait until ``text`` is in the log; the error contains the log."""
        try:
            wait(lambda: text in self.log, f"{text!r} in the log", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the log is:\n{self.log}") from None

    def health(self) -> LabHealth:
        """Return the answer of ``/healthz``."""
        try:
            status, body = http_request(self.node, "127.0.0.1", HEALTH_PORT, "/healthz")
            return LabHealth(status, json.loads(body))
        except OSError:
            return LabHealth(0, {})

    def ready(self, timeout: float = 30.0) -> None:
        """Wait until the agent is healthy; ``LabError`` with the log if it ends instead."""

        def healthy() -> bool:
            if self.process.poll() is not None:
                raise LabError(f"the agent of {self.node.name} ended:\n{self.log}")
            return self.health().status == 200

        try:
            wait(healthy, f"the agent of {self.node.name} is healthy", timeout)
        except TimeoutError as error:
            body = self.health().body
            raise TimeoutError(f"{error}; /healthz: {body}; the log is:\n{self.log}") from None

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit status."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self, timeout: float = 10.0) -> int:
        """Wait for the end and return the exit status; the error says where the agent waits."""
        try:
            return self.process.wait(timeout=stretched(timeout))
        except subprocess.TimeoutExpired as error:
            threads = Path(f"/proc/{self.process.pid}/task").iterdir()
            waits = "\n".join((thread / "stack").read_text() for thread in threads)
            raise TimeoutError(f"{error}; the log is:\n{self.log}\n{waits}") from None


class LabCluster:
    """A context manager: it makes a directory on entry, and ends its agents on exit.

    ``nodes``: the nodes that get agents (default all); ``options``: flags for every agent;
    ``served``: a namespace and its address where an API server runs, instead of the directory.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        nodes: Sequence[LabNode] | None = None,
        options: Sequence[str] = (),
        cgroup_root: Path | None = None,
        served: tuple[Namespace, str] | None = None,
    ) -> None:
        self.lab = lab
        self.nodes = list(lab.nodes if nodes is None else nodes)
        self.options = tuple(options)
        self.agents: dict[str, LabAgent] = {}
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
            # An agent waits for it if an API server does not have it.
            self.put(
                "nodes", *(objects.node(node.name, node.addresses.values()) for node in self.nodes)
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
            agent.ended()
        self._supply.close()
        shutil.rmtree(self.place)

    # -- objects ----------------------------------------------------------------------------------

    @property
    def api(self) -> ApiServer:
        """The API server."""
        assert isinstance(self._supply, Served), "this cluster is a directory"
        return self._supply.server

    def snapshot_file(self, node: LabNode) -> Path:
        """Return the file in which a node's agent keeps its snapshot."""
        assert isinstance(self._supply, Served), "a directory needs no snapshot"
        return self._supply.snapshot_file(node.name)

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Replace the objects under a name by these."""
        self._supply.put(name, *objects)

    def put_text(self, file: str, text: str) -> None:
        """Write any text as a file of the directory."""
        assert isinstance(self._supply, Files), "this cluster has no directory"
        self._supply.put_text(file, text)

    def drop(self, name: str) -> None:
        """Remove the objects under a name."""
        self._supply.drop(name)

    def apply(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Put objects and wait until every agent has written them to its kernel."""
        self.put(name, *objects)
        self.settle()

    def settle(self, nodes: Iterable[LabNode] | None = None, timeout: float = 10.0) -> None:
        """Wait until all objects that were put before are in the kernel.

        Two marks are put, one after the other: when the second is in the kernel, the change with
        the first is complete, deletions included, because an agent writes one change after another.
        A mark is a Service with an endpoint, as an API server sends the two on separate watches.
        """
        for _ in range(2):
            self._mark = self._mark % _MARKS + 1
            self._supply.mark(self._mark)
            for node in self.nodes if nodes is None else nodes:
                wait(
                    partial(self._is_marked, node, self._mark),
                    f"mark {self._mark} in the kernel of {node.name}",
                    timeout,
                )

    def _is_marked(self, node: LabNode, number: int) -> bool:
        entry = self.entry(node, MARK, number)
        return entry is not None and bool(self._layout(node).unpack(entry)["other.size"])

    # -- agents -----------------------------------------------------------------------------------

    def start(self, *nodes: LabNode, options: Sequence[str] = (), **process: Any) -> None:
        """Start agents (default: on all nodes) and wait until they are healthy.

        ``process``: options of ``subprocess.Popen``; with ``cwd`` the bpfsvc in that directory
        runs.
        """
        chosen = nodes or tuple(self.nodes)
        for node in chosen:
            self.launch(node, options=options, **process)
        for node in chosen:
            self.agents[node.name].ready()

    def launch(
        self,
        node: LabNode,
        *,
        options: Sequence[str] = (),
        before: Sequence[str] | None = None,
        **process: Any,
    ) -> LabAgent:
        """Start an agent without waiting for it.

        ``before``: the beginning of its command; by default it gives the agent the rights that
        ``deploy/`` grants, and no others.
        """
        self._runs += 1
        agent = LabAgent(
            node,
            [
                *(limited() if before is None else before),
                *COMMAND,
                "run",
                *self.flags(node),
                "--pin-root",
                str(node.pin_root),
                *options,
            ],
            self.place / f"{node.name}-{self._runs}.log",
            **process,
        )
        self.agents[node.name] = agent
        return agent

    def flags(self, node: LabNode) -> list[str]:
        """Return the flags of a node's agent, except ``--pin-root``."""
        return [
            *self._supply.flags(node.name),
            # Compiled once for all agents of a run, unless they are of another build.
            "--cache",
            str(sandbox.COMPILED),
            "--history",
            str(self.place / f"{node.name}-history"),
            "--cgroup-root",
            str(self._cgroup_root or node.cgroup),
            "--hostname-override",
            node.name,
            "--cluster-cidr",
            ",".join(str(cidr) for cidr in self.lab.cluster_cidrs.values()),
            *self.options,
        ]

    def stop(self, node: LabNode) -> None:
        """End an agent by SIGTERM; ``LabError`` if its exit status is not 0."""
        agent = self.agents.pop(node.name)
        if status := agent.end():
            raise LabError(f"the agent of {node.name} ended with {status}:\n{agent.log}")

    def kill(self, node: LabNode) -> None:
        """End an agent by ``kill -9``."""
        self.agents.pop(node.name).end(signal.SIGKILL)

    # -- results ---------------------------------------------------------------------------------

    def command(
        self,
        node: LabNode,
        *words: str,
        before: Sequence[str] = (),
        pin_root: Path | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a ``bpfsvc`` command with the node's ``--pin-root`` to its end, with any exit status.

        ``before``: a command that runs it; ``options``: for ``subprocess.Popen``.
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
            raise LabError(f"{' '.join(words)} does not end on {node.name}") from error
        return subprocess.CompletedProcess(words, process.returncode, str(output), str(errors))

    def await_entry(
        self,
        node: LabNode,
        ip: str,
        number: int,
        *,
        other_than: bytes | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Wait until a frontend has an entry other than ``other_than`` in a node's kernel."""
        wait(
            lambda: self.entry(node, ip, number) not in (None, other_than),
            f"{ip}:{number} in the kernel of {node.name}",
            timeout,
        )

    def await_removal(self, node: LabNode, ip: str, number: int) -> None:
        """Wait until a frontend has no entry in the kernel of a node."""
        wait(
            lambda: self.entry(node, ip, number) is None,
            f"{ip}:{number} is no longer in the kernel of {node.name}",
        )

    def entry(self, node: LabNode, ip: str, number: int, protocol: int = 6) -> bytes | None:
        """Return a frontend's entry in the kernel of a node; it differs after every change."""
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

    def _layout(self, node: LabNode) -> Record:
        """Return the layout of such an entry."""
        pinned = Pinned(PinRoot(node.pin_root).current)
        try:
            return pinned.layout.maps["frontends"].value
        finally:
            pinned.close()
