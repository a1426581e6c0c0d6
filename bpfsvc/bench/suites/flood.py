"""What a flood of first packets does to those who mean it.

An outside client keeps connections through a NodePort and uses each in turn; another makes new
ones, one after another; a third sends SYNs to the same NodePort and to the cluster IP. Measured
before, during and after: nothing established may fail, and what a flood costs in latency and in new
connections is reported, with the rows that the connection tables hold at the end of each phase.

The flood takes CPU time from everybody on two cores. So it is also sent where no Service is
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

from bpfsvc.bench.clusters.objects import MEASURED, NODE_PORT, PORT, write_cluster
from bpfsvc.bench.figures import Say, Scale, percentile
from bpfsvc.bench.processes.children import ProcessFailed, command
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.agents import cores, start_agents
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.lab import dial, sandbox
from bpfsvc.lab.dial import Conversation
from bpfsvc.lab.namespace import Process
from bpfsvc.lab.topology import Lab

_BACKEND_PORT = 8080
_CONNECTIONS = 50
_TABLES = ("new_connections", "connections")
_CLOSED = [["192.168.50.11", 7], [MEASURED, 7]]
_OPEN = [["192.168.50.11", NODE_PORT], [MEASURED, PORT]]


@dataclass(frozen=True, slots=True)
class _Stand:
    """The lab and the connections that were there before the flood."""

    lab: Lab
    established: list[Conversation]


def steps(scale: Scale, results: Results) -> Iterator[Step]:
    """Flood at several rates, closed ports and open ones, at the smallest size of cluster."""
    services = min(scale.services)
    for rate in scale.flood_rates:
        for name, targets in (("closed port", _CLOSED), ("Service", _OPEN)):
            flood = Flood(services, rate, name, targets, scale.flood_seconds)
            seconds = setup_seconds("tc", services) + 3 * scale.flood_seconds
            yield Step(f"flood: {flood}", seconds, partial(_flood, flood, results))


@dataclass(frozen=True, slots=True)
class Flood:
    """What is sent: so many first packets a second, to what, for how long."""

    services: int
    rate: int
    name: str
    targets: list[list[object]]
    seconds: float

    def __str__(self) -> str:
        """Give it in words."""
        return f"{self.rate:,} SYNs a second to a {self.name}"


def _flood(flood: Flood, results: Results, say: Say) -> None:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab("routed", families=(4,), pods_per_node=1))
        backend = next(iter(lab.nodes[1].pods.values()))
        backend.serve(_BACKEND_PORT)
        manifests = sandbox.ROOT / f"flood-{flood.rate}-{flood.name.replace(' ', '-')}"
        write_cluster(manifests, flood.services, backend.address(4), _BACKEND_PORT)
        start_agents(stack, lab, manifests)
        lab.client.route(MEASURED, lab.nodes[0])
        stand = _Stand(lab, _establish(stack, lab))
        for phase in ("before", "during", "after"):
            say(phase)
            sender = _send(lab, flood) if phase == "during" else None
            cells = list(_observe(stand, flood, phase))
            sent = _sent(sender) if sender else 0
            cells.append(_cell(flood, phase, "SYNs sent", "", [sent]))
            cells += (
                _cell(flood, phase, f"rows of {table}", "", [rows])
                for table, rows in _tables(lab).items()
            )
            results.cells += cells


def _cell(flood: Flood, phase: str, what: str, unit: str, values: Iterable[float]) -> Cell:
    return Cell(
        suite="flood",
        kind=f"{flood}, {phase}: {what}",
        mode="tc",
        services=flood.services,
        where=flood.name,
        unit=unit,
        values=tuple(values),
    )


def _establish(stack: ExitStack, lab: Lab) -> list[Conversation]:
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


def _observe(stand: _Stand, flood: Flood, phase: str) -> Iterator[Cell]:
    """Use what is established and make new connections for some seconds."""
    node = stand.lab.nodes[0].address(4)
    new = stand.lab.client.load("connect", node, NODE_PORT, seconds=flood.seconds, timeout=1.0)
    failed = 0
    times = []
    deadline = time.monotonic() + flood.seconds
    while time.monotonic() < deadline:
        for one in tuple(stand.established):
            start = time.monotonic()
            try:
                right = one.echo(b"still there?")
            except OSError:
                right = False
            if right:
                times.append((time.monotonic() - start) * 1000)
            else:
                failed += 1
                stand.established.remove(one)
        time.sleep(0.005)
    result = new.result()
    yield replace(
        _cell(flood, phase, "requests on established connections", "ms", [percentile(times, 50)]),
        latency={name: percentile(times, float(name)) * 1000 for name in ("50", "99", "99.9")},
    )
    yield _cell(flood, phase, "established connections that failed", "", [failed])
    yield replace(
        _cell(flood, phase, "new connections", "per second", [result.rate]),
        latency={name: result.latency[name] for name in ("50", "99") if name in result.latency},
    )
    yield _cell(flood, phase, "new connections that failed", "", [result.failed])


def _tables(lab: Lab) -> dict[str, int]:
    pinned = Pinned(PinRoot(lab.nodes[0].pin_root).current)
    rows = {table: sum(len(batch) for batch in pinned.map(table).batches()) for table in _TABLES}
    pinned.close()
    return rows
