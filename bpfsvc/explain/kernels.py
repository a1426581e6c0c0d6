"""The two kernels that can be asked: the running agent's, and one made from manifests or cases.

* :class:`LiveKernel` asks what an agent put into the kernel, and changes nothing. The objects are
  not in the kernel, so the agent is asked for them. Where it does not answer, the reasons end at
  the entries.
* :class:`PrivateKernel` holds the programs and maps of a node in namespaces of this process. They
  are loaded once, then filled and emptied for one set of objects after another.
"""

from __future__ import annotations

import random
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bpfsvc.base import syscalls
from bpfsvc.base.address import pack, unpack
from bpfsvc.base.errors import BpfsvcError, KernelError, SystemUnfit, UsageError
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.loader.installation import install
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.backend_loads import Load, read_load
from bpfsvc.datapath.maps.backend_outcomes import read_states
from bpfsvc.datapath.maps.layout import Value
from bpfsvc.datapath.maps.localities import kept_of
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.datapath.syscall import Map
from bpfsvc.explain.agent_answers import AgentAnswers, NoAnswer
from bpfsvc.explain.answer import Answer, Outcome, answer_for, answer_without_frontend
from bpfsvc.explain.context import (
    QuestionContext,
    context_of_case,
    node_context,
    objects_of_case,
)
from bpfsvc.explain.programs import Decision, decide, send
from bpfsvc.explain.question import Case, Question, from_flow
from bpfsvc.explain.reasons import CLIENTS, clients_seen, echo_reasons, reasons
from bpfsvc.explain.removal import removal_reasons
from bpfsvc.explain.schedule import (
    load_reasons,
    locality_reasons,
    schedule_reasons,
    share_reasons,
)
from bpfsvc.explain.spill import spill_reasons
from bpfsvc.model import ObjectError
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import Frontend, Place, frontend_text
from bpfsvc.services.faults import losers
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.restore import restore
from bpfsvc.services.rules.context import primary_address
from bpfsvc.services.rules.nodeport_addresses import LOOPBACK
from bpfsvc.services.scheduling.schedulers import counts_connections

# -- the running agent's kernel --------------------------------------------------------------------

_LOOPBACK_INDEX = 1


class LiveKernel:
    """Answers questions about the node whose maps are given; ``agent``: the one that runs there."""

    def __init__(self, pinned: Pinned, agent: AgentAnswers) -> None:
        self._pinned = pinned
        self._agent = agent
        tables = ServiceMaps(pinned)
        counters = pinned.map("backend_counters").max_entries
        restored = restore(tables.read, Ids(counters - 1))
        self._owners = {frontend: one for one in restored.applied for frontend in one.frontends()}
        self._own = {key for key, _ in pinned.map("node_addresses").items()}

    def answer(self, question: Question) -> Answer:
        """Return what the deciding program says, and the entries it decided by."""
        interface = _index(question.interface) if question.interface else _LOOPBACK_INDEX
        decision = decide(self._pinned, question, interface)
        owner = self._owners.get(decision.frontend)
        if owner is None:
            return answer_without_frontend(decision.verdict, question, self._owners)
        outcome = Outcome(
            decision.verdict,
            question,
            decision.frontend,
            owner,
            decision.client,
            self._own,
            decision.backend,
            spilled=decision.spilled,
        )
        loads = load_reasons(outcome, self._load)
        kept = locality_reasons(outcome, partial(kept_of, self._pinned))
        spill = spill_reasons(outcome, self._load)
        return answer_for(outcome, (*self._reasons(outcome, decision), *spill, *kept, *loads))

    def _load(self, counters: int) -> Load:
        raw = self._pinned.map("backend_loads").lookup(struct.pack("=I", counters)) or b""
        return read_load(raw, self._pinned.layout.maps["backend_loads"].value).total

    def _reasons(self, outcome: Outcome, decision: Decision) -> Iterator[str]:
        port = outcome.owner.port
        try:
            found = self._agent.known(port.namespace, port.name)
        except NoAnswer as error:
            yield from _reasons_of_entries(outcome, decision)
            yield from removal_reasons(outcome, None)
            yield f"why other endpoints are not eligible is not known: {error.message}"
            return
        if found.refused:
            yield f"the kernel does not hold the latest state of this Service: {found.refused}"
        others = found.conflicts.get(frontend_text(decision.frontend), ())
        node = node_context(found.node)
        yield from reasons(outcome, found.known, node, others, self._in_quarantine(outcome))
        yield from share_reasons(outcome, found.shares)
        yield from removal_reasons(outcome, found.drain_seconds)

    def _in_quarantine(self, outcome: Outcome) -> dict[Place, bool]:
        found = read_states(self._pinned.map("quarantined").items(), self._pinned.layout)
        counters = outcome.owner.counters()
        return {place: found[one] for place, one in counters.items() if one in found}


def _reasons_of_entries(outcome: Outcome, decision: Decision) -> Iterator[str]:
    policy = outcome.policy
    yield f"the client is {CLIENTS[outcome.client]}"
    if outcome.policies.restricted:
        source = unpack(outcome.question.source)
        if decision.forbidden:
            yield f"the source ranges do not contain {source}: dropped"
        else:
            yield f"the source ranges contain {source}: allowed"
    if policy.size:
        are = "is" if policy.size == 1 else "are"
        yield f"{count_text(policy.size, 'endpoint')} {are} eligible for such clients"
        yield from clients_seen(outcome, "such clients are masqueraded")
        yield from schedule_reasons(outcome)
    elif policy.reject and outcome.owner.size:
        yield "all endpoints for such clients have weight 0"
    else:
        where = "anywhere" if policy.reject else "for such clients"
        yield f"no endpoint is usable {where}"
    if outcome.policies.affinity_seconds:
        yield f"session affinity lasts {outcome.policies.affinity_seconds} s"
    yield from echo_reasons(outcome)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise UsageError(
            f"there is no interface {name!r} here", "list the names with: ip link"
        ) from None


# -- a kernel side of this process -----------------------------------------------------------------

_MASQUERADE_FIRST, _MASQUERADE_PORTS = 10000, 20000
_ONLY_KEY = bytes(4)
_NO_ADDRESS = bytes(16)

_EXAMPLES = {4: pack("192.0.2.1"), 6: pack("2001:db8::1")}
"""What a node without an address of a family masquerades to (RFC 5737, RFC 3849)."""

_OF_TRAFFIC = ("connections", "new_connections", "affinities")
"""Maps that packets write to."""

_ENTRIES = 4096


class PrivateKernel:
    """Maps and programs of this process, and the node and objects they were last loaded with."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self._interface = socket.if_nametoindex("lo")
        """The device that packets are said to arrive at."""
        self._tables = ServiceMaps(pinned)
        self._context: QuestionContext
        self._cache: Cache
        self._planner: Planner
        self._owners: dict[Frontend, Applied] = {}

    def load(self, context: QuestionContext, cache: Cache) -> None:
        """Fill the maps for a node and its objects, in place of those before."""
        self._clear()
        planner = Planner(cache, context.config, max_backends=_ENTRIES)
        planner.sync_all(time.monotonic(), self._tables.execute)
        self._write_node(context)
        self._tables.know_destinations()
        self._tables.set_service_networks(planner.service_networks())
        self._context, self._cache = context, cache
        self._planner = planner
        self._owners = {
            frontend: one for one in planner.applied_state for frontend in one.frontends()
        }

    def answer(self, question: Question) -> Answer:
        """Return what the programs do, and why.

        For a packet, both the decision and what really happens to the packet is looked at; raises
        :class:`KernelError` if the two differ.
        """
        self._write_interface(question.interface)
        own = frozenset(self._context.addresses)
        port = random.randrange(1024, 65536)
        decision = decide(self._pinned, question, self._interface, port)
        verdict, backend, source = decision.verdict, decision.backend, b""
        if not question.is_of_node:
            result = send(self._pinned, question, self._interface, own, port)
            self._forget_traffic(decision.frontend)
            if result.verdict != verdict:
                raise KernelError(
                    f"the programs contradict each other about {unpack(question.destination)}:"
                    f" {verdict} and {result.verdict}"
                )
            backend, source = result.destination, result.source
        owner = self._owners.get(decision.frontend)
        if owner is None:
            return answer_without_frontend(verdict, question, self._owners)
        outcome = Outcome(
            verdict, question, decision.frontend, owner, decision.client, own, backend, source
        )
        return answer_for(outcome, tuple(self._reasons(outcome)))

    def _reasons(self, outcome: Outcome) -> Iterator[str]:
        port = outcome.owner.port
        key = port.namespace, port.name
        others = losers(self._planner.ownership, outcome.frontend)
        yield from reasons(outcome, self._cache.lookup(key), self._context.context, others)
        removal = self._planner.schedulings.in_force(key).removal
        yield from removal_reasons(outcome, removal.drain_seconds)

    def _forget_traffic(self, frontend: Frontend) -> None:
        """Remove what a packet wrote, so that the next one is the first of its connection."""
        for name in _OF_TRAFFIC:
            _empty(self._pinned.map(name))
        owner, loads = self._owners.get(frontend), self._pinned.map("backend_loads")
        if owner and counts_connections(owner.frontends()[frontend]):
            for counters in owner.counter_ids:
                loads.update(struct.pack("=I", counters), bytes(loads.value_size))

    def _write_interface(self, name: str) -> None:
        """Describe the device in the maps as the node's interface of that name."""
        is_pods = self._context.detection.is_for_pods(name)
        record = self._pinned.layout.maps["interfaces"].value
        v4, v6 = (_primary(self._context, each) or _EXAMPLES[each] for each in (4, 6))
        entry = record.pack({"v4": v4, "v6": v6, "pods": is_pods})
        self._pinned.map("interfaces").update(struct.pack("=I", self._interface), entry)

    def _clear(self) -> None:
        self._tables.clear()
        for name in ("node_addresses", *_OF_TRAFFIC):
            _empty(self._pinned.map(name))

    def _write_node(self, context: QuestionContext) -> None:
        record = self._pinned.layout.maps["node_addresses"].value
        addresses = self._pinned.map("node_addresses")
        for address in (*context.addresses, LOOPBACK):
            state = context.node_ports.state(address)
            number = self._pinned.layout.constant(f"NODEPORTS_{state.upper()}")
            addresses.update(address, record.pack({"nodeports": number}))
        settings = self._pinned.layout.maps["settings"].value
        values = _settings(context)
        # A question about a refused packet is answered however many there were.
        for name in ("icmp_interval_v4", "icmp_interval_v6"):
            values[name] = self._pinned.layout.constant("ICMP_UNLIMITED")
        self._pinned.map("settings").update(_ONLY_KEY, settings.pack(values))


def answer_cases(kernel: PrivateKernel, cases: list[Case]) -> Iterator[dict[str, object]]:
    """Yield the answers to all flows, case by case."""
    for number, case in enumerate(cases, start=1):
        name = str(case.get("id", number)) if isinstance(case, dict) else str(number)
        try:
            kernel.load(context_of_case(case), objects_of_case(case))
            for flow in case.get("flows", ()):
                yield {"id": flow.get("id", ""), **kernel.answer(from_flow(flow)).to_object()}
        except (BpfsvcError, ObjectError) as error:
            raise UsageError(f"case {name}: {error}", "fix the case") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"case {name} does not have the format: {type(error).__name__} {error}",
                "see docs/explain.md for the format",
            ) from error


@contextmanager
def private_kernel(cache: Path | None, programs: Path | None = None) -> Iterator[PrivateKernel]:
    """Make a kernel side of its own. This process is in namespaces of its own from then on.

    ``cache``: where compiled programs are kept for the next run; None: nowhere. ``programs``: a
    directory of those that came with bpfsvc.
    """
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    except OSError as error:
        raise SystemUnfit(
            f"the programs cannot be run in namespaces of their own: {error}",
            "run as root, or privileged in a container",
        ) from error
    with tempfile.TemporaryDirectory(prefix="bpfsvc-explain-") as directory:
        syscalls.mount("bpf", directory, "bpf")
        try:
            root = PinRoot(Path(directory, "node"))
            yield PrivateKernel(install(root, load(_SIZES), _ignore, cache, programs).pinned)
        finally:
            syscalls.unmount(directory)


_SIZES = Sizes(
    max_services=_ENTRIES,
    max_frontends=4 * _ENTRIES,
    max_backends=4 * _ENTRIES,
    max_backend_slots=16 * _ENTRIES,
    max_connections=_ENTRIES,
    max_new_connections=_ENTRIES,
    max_direct_flows=_ENTRIES,
)


def _ignore(_: str) -> None:
    """Drop messages about a former build: there is none."""


def _settings(context: QuestionContext) -> dict[str, Value]:
    values: dict[str, Value] = {
        "masquerade_first": _MASQUERADE_FIRST,
        "masquerade_ports": _MASQUERADE_PORTS,
        "detect_interfaces": context.detection.by_interface,
        "node_v4": _primary(context, 4) or _NO_ADDRESS,
        "node_v6": _primary(context, 6) or _NO_ADDRESS,
    }
    for of_family, (network, mask) in context.detection.ranges(context.node).items():
        name = f"v{of_family}"
        values |= {f"pod_network_{name}": network, f"pod_mask_{name}": mask}
        values[f"detect_pods_{name}"] = 1
    return values


def _primary(context: QuestionContext, of_family: int) -> bytes | None:
    return primary_address((*context.node.addresses, *context.addresses), of_family)


def _empty(table: Map) -> None:
    keys = [key for key, _ in table.items()]
    if keys:
        table.delete_many(keys)
