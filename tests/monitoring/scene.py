"""A lab in which faults are made side by side, and two Prometheus servers that scrape its agents.

Each node has one part, so that a fault of an agent or of a map disturbs no other fault.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

import bpfsvc
from bpfsvc.devtools.bench.baselines import BaselineService, write_rules
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import Object, port, service_cidr
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS, Lab
from tests.lab.testbed import Named, objects
from tests.monitoring.prometheus import Prometheus, running_prometheus

FACTOR = 60
"""Minutes become seconds. Both servers scrape and evaluate every second: here that stands for
a minute, Prometheus's own default. Periods of the agent stay, but for that of :data:`CANARY`.
"""

ROLLOUT_FACTOR = 600
"""For the alert that waits for hours."""

PARTS: Sequence[str] = ("web", "small", "stuck", "shadow", "cut_off", "restarted", "canary")

ROLLED_OUT = ("web", "canary")
"""Those that the second server scrapes."""

METRICS_PORT, SHADOW_PORT = 10249, 10276
_EXPOSED = f"--metrics-bind-address=0.0.0.0:{METRICS_PORT}"

SMALL = 256
"""Entries of the small map of connections."""

FRONTENDS = 200
MASQUERADE_PORTS = 10

OPTIONS: Mapping[str, Sequence[str]] = {
    "web": ("--count-drops-elsewhere",),
    "small": ("--max-connections", str(SMALL), "--max-frontends", str(FRONTENDS)),
    "canary": ("--masquerade-ports", f"20000-{20000 + MASQUERADE_PORTS - 1}"),
}

_VERSION = bpfsvc.__version__
CANARY = {
    "bpfsvc/__init__.py": (f'__version__ = "{_VERSION}"', '__version__ = "0.0.9"'),
    "bpfsvc/agent/assembly.py": ("_RECONCILE_SECONDS = 600.0", "_RECONCILE_SECONDS = 10.0"),
    # It uses what is compiled for all, and must not replace that by its own.
    "bpfsvc/datapath/loader/bytecode.py": ("[5, __version__]", f'[5, "{_VERSION}"]'),
}
"""What another version has in place of a text of this one; its check for drift is shortened."""

SHADOWED = Named("shadowed", 80)


class Scene(NamedTuple):
    """The lab and what runs in it."""

    lab: Lab
    cluster: LabCluster
    servers: dict[int, Prometheus]
    """By the factor of their rules."""
    canary: Path
    """The directory of the other version."""

    def node(self, part: str) -> LabNode:
        """Return the node that has a part."""
        return self.lab.nodes[PARTS.index(part)]

    def instance(self, part: str) -> str:
        """Return the target of a node's agent."""
        number = SHADOW_PORT if part == "shadow" else METRICS_PORT
        return f"{self.node(part).address()}:{number}"

    def launch(self, part: str, *options: str) -> None:
        """Start the agent of a part without waiting for it."""
        process: dict[str, Any] = {"cwd": self.canary} if part == "canary" else {}
        if part == "shadow":
            shadow = ("--shadow", "--shadow-tolerance=1s", "--proxy-mode=nftables")
            options = (*shadow, f"--shadow-bind-address=0.0.0.0:{SHADOW_PORT}", *options)
        else:
            options = (_EXPOSED, *OPTIONS.get(part, ()), *options)
        self.cluster.launch(self.node(part), options=options, **process)

    def ready(self, part: str) -> None:
        """Wait until the agent of a part works."""
        agent = self.cluster.agents[self.node(part).name]
        if part == "shadow":
            agent.expect("shadow mode: comparing", 60)
        else:
            agent.ready(60)

    def apply(self, of: Named, backends: Sequence[Any], target: int = 8080, **spec: Any) -> None:
        """Put a Service whose endpoints have a port, or change it."""
        self.cluster.put(of.name, *described(of, backends, target, **spec))

    def metrics(self, part: str) -> str:
        """Return all metrics, from the agent itself; ``OSError`` if it is mute."""
        number = SHADOW_PORT if part == "shadow" else METRICS_PORT
        to = (self.node(part), "127.0.0.1", number, "/metrics")
        return http_request(*to, timeout=0.5)[1].decode()

    def metric(self, part: str, name: str) -> float:
        """Return a metric without labels; ``OSError`` if the agent is mute."""
        lines = self.metrics(part).splitlines()
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        return float(line.split()[1])

    def attempt(self, part: str, of: Named, attempts: ExitStack, times: int) -> None:
        """Have the client begin to connect to a NodePort."""
        to = (self.node(part).address(), of.node_port)
        begin_to_connect(self.lab.client, to, attempts, times)


def begin_to_connect(
    client: Namespace, to: tuple[str, int], attempts: ExitStack, times: int
) -> None:
    """Send SYNs and wait for no answer; what comes of them is reset when ``attempts`` ends."""
    for _ in range(times):
        made = attempts.enter_context(client.socket(socket.AF_INET))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.setblocking(False)
        made.connect_ex(to)


def described(of: Named, backends: Sequence[Any], target: int = 8080, **spec: Any) -> list[Object]:
    """Return a Service for TCP and UDP and its slices."""
    ports = [port(target, "web"), port(target, "dns", "UDP")]
    return objects(of, backends, ports, families=(4,), **spec)


class Alerts:
    """The alerts of both servers, looked up once for all who wait for them."""

    def __init__(self, servers: Mapping[int, Prometheus]) -> None:
        self._servers = servers
        self._looked = threading.Condition()
        self._firing: dict[int, list[dict[str, str]]] = {}

    def look(self) -> None:
        """Ask the servers, and wake up those who wait."""
        now = {
            factor: [
                alert["labels"]
                for alert in server.get("alerts")["alerts"]
                if alert["state"] == "firing"
            ]
            for factor, server in self._servers.items()
        }
        with self._looked:
            self._firing = now
            self._looked.notify_all()

    def next(self, factor: int) -> list[dict[str, str]]:
        """Return the labels of all firing alerts, at the next look or after a second."""
        with self._looked:
            self._looked.wait(1)
            return self._firing.get(factor, [])


@contextmanager
def running_scene(directory: Path) -> Iterator[Scene]:
    """Run agents without a fault, and the servers, until the end of the block."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab("routed", families=(4,), nodes=len(PARTS), pods_per_node=1))
        for number in range(8080, 8085):
            lab.serve(number)
        at_client = (lab.client, lab.client.address())
        cluster = stack.enter_context(LabCluster(lab, served=at_client))
        scene = Scene(lab, cluster, {}, _other_version(directory / "canary"))
        cluster.put("cidr", service_cidr("10.96.0.0/12"))
        _shadow(scene)
        # The first agent compiles the programs if no earlier test has; the others find them.
        for parts in (PARTS[:1], PARTS[1:]):
            for part in parts:
                scene.launch(part)
            for part in parts:
                scene.ready(part)
        for factor, number, parts in (
            (FACTOR, 9090, PARTS),
            (ROLLOUT_FACTOR, 9091, ROLLED_OUT),
        ):
            place = directory / f"prometheus-{factor}"
            place.mkdir()
            scene.servers[factor] = stack.enter_context(
                running_prometheus(
                    lab.nodes[0],
                    [scene.instance(part) for part in parts],
                    place,
                    port=number,
                    factor=factor,
                )
            )
        # What was counted before the first scrape has no increase.
        scraped = "bpfsvc_build_info and on (instance) up == 1"
        for server, count in ((FACTOR, len(PARTS)), (ROLLOUT_FACTOR, len(ROLLED_OUT))):
            asked = partial(scene.servers[server].samples, scraped)
            wait(partial(_has, asked, count), "all agents are scraped", 60)
        yield scene


def _has(asked: Callable[[], Sequence[object]], count: int) -> bool:
    return len(asked()) >= count


def _shadow(scene: Scene) -> None:
    """Write the rules of kube-proxy for a Service, with the endpoints that it has."""
    backends = scene.lab.pods[:2]
    scene.apply(SHADOWED, backends)
    led = BaselineService(
        f"default/{SHADOWED.name}:web",
        SHADOWED.vip(4),
        80,
        backends=tuple((pod.address(), 8080) for pod in backends),
    )
    write_rules(scene.node("shadow"), "nftables", [led], IPv4Network(CLUSTER_CIDRS[4]))


def _other_version(directory: Path) -> Path:
    """Write a copy of bpfsvc that has another version."""
    shutil.copytree(
        Path(bpfsvc.__file__).parent,
        directory / "bpfsvc",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name, (text, other) in CANARY.items():
        replace(directory / name, text, other)
    return directory


def replace(file: Path, text: str, other: str) -> None:
    """Replace a text that a file has once."""
    changed, count = re.subn(re.escape(text), other, file.read_text())
    assert count == 1, f"{text!r} is {count} times in {file}"
    file.write_text(changed)
