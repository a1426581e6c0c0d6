"""Print, for each flow of the sample and of random clusters, what the programs and the recorded
entries decide.

The kernel of a process needs namespaces of its own, so this is a program.
"""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bpfsvc.base.address import unpack
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.explain.cases import context_of_case, from_flow, objects_of_case
from bpfsvc.explain.live_kernel import Agent, LiveKernel
from bpfsvc.explain.node_maps import write_interface
from bpfsvc.explain.private_kernel import private_kernel
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
)


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
