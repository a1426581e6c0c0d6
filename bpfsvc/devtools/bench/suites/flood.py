"""What a flood of first packets does to connections that are wanted.

An external client keeps connections through a NodePort and uses each in turn; another makes new
ones, one after another; a third sends SYNs to the same NodePort and to the cluster IP. Measured
before, during and after: no established connection may fail, and what a flood costs in latency and
in new connections is reported, with the entries of the connection tables at the end of each phase.

On two cores the flood takes CPU time from all. So it is also sent to a port without Service
(``where`` = ``closed port``): the difference is what bpfsvc adds.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.bench.cluster import MEASURED, NODE_PORT, PORT, write_cluster
from bpfsvc.devtools.bench.figures import percentile
from bpfsvc.devtools.bench.line_process import ProcessFailed, command
from bpfsvc.devtools.bench.modes import DEFAULT
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.testbeds.agents import cores, start_agents
from bpfsvc.devtools.lab import dial, sandbox
from bpfsvc.devtools.lab.dial import OpenConnection
from bpfsvc.devtools.lab.namespace import Process
from bpfsvc.devtools.lab.topology import Lab

_BACKEND_PORT = 8080
_CONNECTIONS = 50
_TABLES = ("new_connections", "connections")
_CLOSED = [["192.168.50.11", 7], [MEASURED, 7]]
_OPEN = [["192.168.50.11", NODE_PORT], [MEASURED, PORT]]


@dataclass(frozen=True, slots=True)
class Flood:
    """What is sent: so many first packets a second, to what, for how long."""

    services: int
    rate: int
    name: str
    targets: list[list[object]]
    seconds: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.rate:,} SYNs a second to a {self.name}"

    def cell(self, phase: str, what: str, unit: str, values: Iterable[float]) -> Cell:
        """Return a figure of a phase."""
        kind = f"{self}, {phase}: {what}"
        return Cell("flood", kind, DEFAULT, self.services, unit, tuple(values), self.name)


def steps(context: Context) -> Iterator[Step]:
    """Return the steps: several rates, closed ports and open ones, at the smallest size."""
    scale = context.scale
    services = min(scale.services)
    for rate in scale.flood_rates:
        for name, targets in (("closed port", _CLOSED), ("Service", _OPEN)):
            flood = Flood(services, rate, name, targets, scale.flood_seconds)
            seconds = setup_seconds(DEFAULT, services) + 3 * scale.flood_seconds
            yield Step(f"flood: {flood}", seconds, partial(_flood, context, flood))


def _flood(context: Context, flood: Flood, report: Report) -> None:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab("routed", families=(4,), pods_per_node=1))
        backend = next(iter(lab.nodes[1].pods.values()))
        backend.serve(_BACKEND_PORT)
        manifests = sandbox.ROOT / f"flood-{flood.rate}-{flood.name.replace(' ', '-')}"
        write_cluster(manifests, flood.services, backend.address(4), _BACKEND_PORT)
        start_agents(stack, lab, manifests)
        lab.client.route(MEASURED, lab.nodes[0])
        established = _establish(stack, lab)
        for phase in ("before", "during", "after"):
            report(phase)
            sender = _send(lab, flood) if phase == "during" else None
            cells = list(_observe(lab, established, flood, phase))
            cells.append(flood.cell(phase, "SYNs sent", "", [_sent(sender) if sender else 0]))
            cells += (
                flood.cell(phase, f"rows of {table}", "", [entries])
                for table, entries in _entries(lab).items()
            )
            context.results.cells += cells


def _establish(stack: ExitStack, lab: Lab) -> list[OpenConnection]:
    made = []
    for _ in range(_CONNECTIONS):
        one = stack.enter_context(dial.connect(lab.client, lab.nodes[0].address(4), NODE_PORT))
        one.who()
        made.append(one)
    return made


def _send(lab: Lab, flood: Flood) -> Process:
    core, _ = cores()
    client, uplink = lab.client, lab.nodes[0].uplink
    words = [
        str(core),
        client.uplink.name,
        client.uplink.mac,
        uplink.mac,
        json.dumps(flood.targets),
        str(flood.rate),
        str(flood.seconds),
    ]
    return client.popen(command("syns", *words), stdout=subprocess.PIPE)


def _sent(sender: Process) -> int:
    output, _ = sender.communicate(timeout=60)
    if sender.returncode != 0:
        raise ProcessFailed("the flood failed")
    return int(json.loads(output)[0])


def _observe(
    lab: Lab, established: list[OpenConnection], flood: Flood, phase: str
) -> Iterator[Cell]:
    """Use what is established and make new connections for some seconds."""
    node = lab.nodes[0].address(4)
    new = lab.client.load("connect", node, NODE_PORT, seconds=flood.seconds, timeout=1.0)
    times, failed = _use(established, time.monotonic() + flood.seconds)
    result = new.result()
    yield replace(
        flood.cell(phase, "requests on established connections", "ms", [percentile(times, 50)]),
        latency={name: percentile(times, float(name)) * 1000 for name in ("50", "99", "99.9")},
    )
    yield flood.cell(phase, "established connections that failed", "", [failed])
    yield replace(
        flood.cell(phase, "new connections", "per second", [result.rate]),
        latency={name: result.latency[name] for name in ("50", "99") if name in result.latency},
    )
    yield flood.cell(phase, "new connections that failed", "", [result.failed])


def _use(established: list[OpenConnection], deadline: float) -> tuple[list[float], int]:
    """Send requests until the deadline; return the ms of each, and how many connections failed.

    Those that failed are removed from the list.
    """
    times: list[float] = []
    failed = 0
    while time.monotonic() < deadline:
        for one in tuple(established):
            start = time.monotonic()
            try:
                right = one.echo(b"still there?")
            except OSError:
                right = False
            if right:
                times.append((time.monotonic() - start) * 1000)
            else:
                failed += 1
                established.remove(one)
        time.sleep(0.005)
    return times, failed


def _entries(lab: Lab) -> dict[str, int]:
    """Return how many entries the connection tables of node 1 hold."""
    pinned = Pinned(PinRoot(lab.nodes[0].pin_root).current)
    found = {table: sum(len(batch) for batch in pinned.map(table).batches()) for table in _TABLES}
    pinned.close()
    return found
