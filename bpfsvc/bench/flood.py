"""What a flood of first packets does to those who mean it.

An outside client keeps connections through a NodePort and uses each in turn; another makes new
ones, one after another; a third sends SYNs to the same NodePort and to the cluster IP. Measured
before, during and after: nothing established may fail, and what a flood costs in latency and in new
connections is reported, with the rows that the connection tables hold at the end of each phase.

The flood takes CPU time from everybody on two cores. So it is also sent where no Service is (``to``
= ``closed port``): the difference is what bpfsvc adds.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bpfsvc.bench.agents import cores, start_agents
from bpfsvc.bench.figures import Row, Say, Scale, percentile
from bpfsvc.bench.objects import MEASURED, NODE_PORT, PORT, write_cluster
from bpfsvc.bench.processes import ProcessFailed, command
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


def flood(scale: Scale, say: Say) -> list[Row]:
    """Flood at several rates, closed ports and open ones."""
    rows = []
    for rate in scale.flood_rates:
        for name, targets in (("closed port", _CLOSED), ("Service", _OPEN)):
            say(f"flood: {rate} a second to {name}")
            rows += _measure(rate, name, targets, scale, say)
    return rows


def _measure(
    rate: int, name: str, targets: list[list[object]], scale: Scale, say: Say
) -> list[Row]:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab("routed", families=(4,), pods_per_node=1))
        backend = next(iter(lab.nodes[1].pods.values()))
        backend.serve(_BACKEND_PORT)
        manifests = sandbox.ROOT / f"flood-{rate}-{name.replace(' ', '-')}"
        write_cluster(manifests, min(scale.services), backend.address(4), _BACKEND_PORT)
        start_agents(stack, lab, manifests)
        lab.client.route(MEASURED, lab.nodes[0])
        stand = _Stand(lab, _establish(stack, lab))
        rows = []
        for phase in ("before", "during", "after"):
            say(f"flood: {rate} a second to {name}, {phase}")
            sender = _send(lab, targets, rate, scale.flood_seconds) if phase == "during" else None
            row: Row = {"to": name, "SYN/s": rate, "phase": phase}
            row |= _observe(stand, scale.flood_seconds)
            row["SYNs sent"] = _sent(sender) if sender else 0
            rows.append(row | _tables(lab))
        return rows


def _establish(stack: ExitStack, lab: Lab) -> list[Conversation]:
    made = []
    for _ in range(_CONNECTIONS):
        one = stack.enter_context(dial.connect(lab.client, lab.nodes[0].address(4), NODE_PORT))
        one.who()
        made.append(one)
    return made


def _send(lab: Lab, targets: list[list[object]], rate: int, seconds: float) -> Process:
    core, _ = cores()
    client, uplink = lab.client, lab.nodes[0].uplink
    words = [
        str(core),
        client.uplink.name,
        client.uplink.mac,
        uplink.mac,
        json.dumps(targets),
        str(rate),
        str(seconds),
    ]
    return client.popen(command("syns", *words), stdout=subprocess.PIPE)


def _sent(sender: Process) -> int:
    output, _ = sender.communicate(timeout=60)
    if sender.returncode != 0:
        raise ProcessFailed("the flood failed")
    return int(json.loads(output)[0])


def _observe(stand: _Stand, seconds: float) -> Row:
    """Use what is established and make new connections for some seconds."""
    node = stand.lab.nodes[0].address(4)
    new = stand.lab.client.load("connect", node, NODE_PORT, seconds=seconds, timeout=1.0)
    failed = 0
    times = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for one in tuple(stand.established):
            start = time.monotonic()
            try:
                right = one.echo(b"still there?")
            except OSError:
                right = False
            if right:
                times.append((time.monotonic() - start) * 1e6)
            else:
                failed += 1
                stand.established.remove(one)
        time.sleep(0.005)
    result = new.result()
    return {
        "established": len(stand.established),
        "failed": failed,
        "us": percentile(times, 50),
        "us 99%": percentile(times, 99),
        "us max": max(times),
        "new/s": result.rate,
        "new failed": result.failed,
        "new us": result.latency.get("50", 0.0),
        "new us 99%": result.latency.get("99", 0.0),
    }


def _tables(lab: Lab) -> Row:
    pinned = Pinned(PinRoot(lab.nodes[0].pin_root).current)
    rows: Row = {
        table: sum(len(batch) for batch in pinned.map(table).batches()) for table in _TABLES
    }
    pinned.close()
    return rows
