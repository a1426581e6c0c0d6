"""The scene of the suites ``change`` and ``start``: one agent, two backends that say who they are.

Only the node where packets are translated has an agent: on a real network the other agents work on
other machines. A client in a pod asks without pause, on a core of its own with the backends.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import sys
from pathlib import Path
from types import TracebackType

from bpfsvc.bench.agents import Agent, cores
from bpfsvc.bench.datagrams import Heard
from bpfsvc.bench.objects import MOVING, PORT, endpoint_slice
from bpfsvc.bench.processes import Talker, server
from bpfsvc.bench.supplies import Files, Origin, Server
from bpfsvc.lab import sandbox
from bpfsvc.lab.topology import Lab

_BACKEND_PORT = 9000
_serial = itertools.count(1)


class Scene:
    """A context manager: a lab with a cluster of ``services`` Services in files or a server."""

    def __init__(self, services: int, origin: Origin = "json") -> None:
        self._services, self._origin = services, origin
        self._lab = Lab("routed", families=(4,), pods_per_node=2)
        self._directory = sandbox.ROOT / f"scene-{next(_serial)}"
        self._present = 0

    def __enter__(self) -> Scene:
        lab = self._lab.__enter__()
        near, far = lab.nodes
        core, _ = cores()
        self._backends = [pod.address(4) for pod in far.pods.values()]
        for number, pod in enumerate(far.pods.values()):
            server(pod, socket.SOCK_DGRAM, _BACKEND_PORT, "datagrams", "server", core, str(number))
        self._client = Talker(next(iter(near.pods.values())), "datagrams", "client", str(core))
        if self._origin == "API":
            address = str(lab.client.addresses[4])
            self.supply: Files | Server = Server(self._directory, lab.client, address, lab.nodes)
        else:
            self.supply = Files(self._directory, self._origin)
        self.supply.fill(self._services, self._backends[0], _BACKEND_PORT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lab.__exit__(kind, error, trace)
        shutil.rmtree(self._directory)

    def agent(self) -> Agent:
        """Start the agent of the node on which the client's pod is."""
        flags = self.supply.flags()
        return Agent(self._lab.nodes[0], flags, self._directory / "agent.log")

    def boot(self) -> None:
        """Empty the node's kernel, as a boot does; files stay."""
        node = self._lab.nodes[0]
        words = [sys.executable, "-m", "bpfsvc", "cleanup", "--pin-root", str(node.pin_root)]
        node.run(words, cwd=Path(__file__).parents[2])

    def watch_first(self) -> None:
        """Let the client ask from now on, though nobody may answer yet."""
        self._client.ask(MOVING, PORT, "", str(self._present))

    def heard(self) -> Heard:
        """Wait for the answer that the client is waiting for."""
        return Heard(*self._client.hear())

    def change(self) -> tuple[float, Heard]:
        """Let the other backend serve; give the seconds until packets went there."""
        following = 1 - self._present
        value = endpoint_slice("moving", [self._backends[following]], _BACKEND_PORT, "UDP")
        self.supply.prepare(value)
        self._client.ask(MOVING, PORT, str(self._present), str(following))
        changed = self.supply.release()
        heard = self.heard()
        self._present = following
        return heard.at - changed, heard
