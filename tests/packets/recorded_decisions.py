"""Print, for each flow of the sample and of random clusters, what the programs and the recorded
entries decide; for Services with schedulers also the endpoint.

The kernel of a process needs namespaces of its own, so this is a program.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.explain.cases import context_of_case, from_flow, objects_of_case
from bpfsvc.explain.live_kernel import Agent, LiveKernel
from bpfsvc.explain.node_maps import write_interface
from bpfsvc.explain.private_kernel import PrivateKernel, private_kernel
from bpfsvc.explain.programs import Decision, decide
from bpfsvc.explain.recorded_decision import RecordedDecision
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.reader import PinnedReader, Reader
from bpfsvc.sysdump.recorded_maps import RecordedReader, map_lines
from tests.specification.cases import read_cases
from tests.specification.generation import random_cases

_MAPS = (
    *("services", "frontends", "backends", "endpoints", "positions", "settings", "interfaces"),
    *("node_addresses", "service_networks", "source_ranges", "backend_loads", "spills"),
    *("schedule_tables", "candidates", "localities"),
)

SCHEDULERS = (
    *("sh", "sh,sh-port", "sh,sh-fallback", "dh", "mh", "mh,mh-port", "fo", "lc", "wlc", "sed"),
    *("nq", "ovf", "lblc", "lblcr"),
)
WEIGHTS: tuple[tuple[int, ...], ...] = ((1, 1, 1, 1, 1), (3, 0, 1, 7, 2), (0, 0, 0, 0, 5))
MANY = 70
"""More endpoints than are compared."""


def recorded(reader: Reader) -> RecordedDecision:
    """Return the decision by what a sysdump would have of a node."""
    entries = (json.loads(line) for name in _MAPS for line in map_lines(reader, name))
    copy = RecordedReader(Layout.from_json(reader.layout.to_json()), entries)
    made: list[RecordedDecision] = []

    def decider(owners: Any) -> RecordedDecision:
        made.append(RecordedDecision(copy, owners))
        return made[0]

    agent: Agent = None  # type: ignore[assignment]
    LiveKernel(copy, EntryReader(copy).read, agent, decider, socket.if_nametoindex)
    return made[0]


def shown(decision: Decision) -> list[object]:
    """Return what must be equal: the backend is compared only where there is no choice."""
    address, port, protocol = decision.frontend
    frontend = [unpack(address), port, protocol] if decision.verdict in ("dnat", "drop") else []
    return [decision.verdict, decision.forbidden, decision.client, decision.spilled, frontend]


def scheduled_case(family: int) -> dict[str, Any]:
    """Return a node whose Services have each scheduler with each set of weights."""
    prefix, client = {4: ("10.96.0.", "203.0.113."), 6: ("fd96::", "2001:db8::")}[family]
    names = [(scheduler, weights) for scheduler in SCHEDULERS for weights in WEIGHTS]
    names += [(scheduler, (1,) * MANY) for scheduler in ("mh", "sh", "ovf")]
    lists: dict[str, Any] = {"services": [], "endpointslices": [], "flows": []}
    case = {"node": {"name": "n1"}, **lists}
    for number, (scheduler, weights) in enumerate(names, 1):
        name, address = f"s{number}", f"{prefix}{number}"
        service, slice_ = scheduled_service(name, address, scheduler, weights, family)
        case["services"].append(service)
        case["endpointslices"].append(slice_)
        origin = "node" if scheduler.startswith("lblc") else "external"
        for client_number in range(1, 8):
            flow: dict[str, Any] = {
                "from": origin,
                "src_ip": f"{client}{17 * client_number % 99}",
                "proto": "TCP",
            }
            flow |= {
                "id": f"{scheduler} {weights} {client_number}",
                "dst_ip": address,
                "dst_port": 80,
            }
            case["flows"].append(flow)
    return case


def scheduled_service(
    name: str, address: str, scheduler: str, weights: tuple[int, ...], family: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Service and its EndpointSlice; ``sed`` also has a limit of connections."""
    network = {4: "10.244.1.", 6: "fd44::"}[family]
    endpoints = [f"{network}{host}" for host in range(1, len(weights) + 1)]
    pairs = zip(endpoints, weights, strict=True)
    annotations = {"bpfsvc.io/scheduler": scheduler}
    if len(weights) < MANY:
        annotations["bpfsvc.io/weights"] = ",".join(f"{ip}={weight}" for ip, weight in pairs)
    if scheduler == "sed":
        annotations["bpfsvc.io/max-connections-per-backend"] = "3"
    service = {
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {
            **{"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]},
            **{"ipFamilies": [f"IPv{family}"], "ports": [{"port": 80, "protocol": "TCP"}]},
        },
    }
    labels = {"kubernetes.io/service-name": name}
    return service, {
        "metadata": {"namespace": "default", "name": f"{name}-1", "labels": labels},
        **{"addressType": f"IPv{family}", "ports": [{"port": 8080, "protocol": "TCP"}]},
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in endpoints],
    }


def put_loads(pinned: Pinned, random: Random, least: int) -> None:
    """Give each backend ``least`` to ``least`` + 7 active connections, and some inactive ones."""
    loads = pinned.map("backend_loads")
    record = pinned.layout.maps["backend_loads"].value
    for counters in range(1, 2048):
        number = least + random.randrange(8) + (random.randrange(9) << 32)
        loads.update(struct.pack("=I", counters), record.pack({"connections": number}))


def compare_schedules(pinned: Pinned, kernel: PrivateKernel, interface: int) -> None:
    """Print what becomes of clients of the Services with schedulers, by some sets of loads."""
    random = Random(20261127)
    for family in (4, 6):
        case = scheduled_case(family)
        kernel.load(context_of_case(case), objects_of_case(case))
        for least in (0, 8):  # with 8, all backends of "ovf" are full
            put_loads(pinned, random, least)
            by_entries = recorded(PinnedReader(pinned))
            for flow in case["flows"]:
                asked, port = from_flow(flow), random.randrange(1, 65536)
                decisions = [
                    decide(pinned, asked, interface, port),
                    by_entries(asked, interface, port),
                ]
                texts = [[*shown(made), endpoint_of(made)] for made in decisions]
                print(json.dumps([flow["id"], *texts]))


def endpoint_of(decision: Decision) -> str:
    """Return the endpoint of a decision; empty if it is left open, or the client is refused."""
    address, port = decision.backend
    return endpoint_text(address, port) if decision.verdict == "dnat" and address else ""


def main(cache: Path) -> None:
    interface = socket.if_nametoindex("lo")
    cases = [*read_cases(), *random_cases(25, 20261127)]
    with private_kernel(cache) as kernel:
        pinned = kernel._pinned
        for case in cases:
            context = context_of_case(case)
            kernel.load(context, objects_of_case(case))
            for flow in case["flows"]:
                question = from_flow(flow)
                write_interface(pinned, context, interface, question.interface)
                asked = replace(question, interface="")
                by_programs = decide(pinned, asked, interface)
                by_entries = recorded(PinnedReader(pinned))(asked, interface)
                print(json.dumps([flow["id"], shown(by_programs), shown(by_entries)]))
        compare_schedules(pinned, kernel, interface)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
