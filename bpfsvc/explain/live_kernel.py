"""The running agent's kernel: its entries answer questions, and nothing is changed.

The objects are not in the kernel, so the agent is asked for them. Where the agent does not answer,
the reasons end at the entries.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from bpfsvc.base.address import unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.maps.backend_loads import Load, read_load
from bpfsvc.datapath.maps.backend_outcomes import read_states
from bpfsvc.datapath.maps.localities import kept_of
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.explain.agent_answers import NoAnswer, ServiceFacts
from bpfsvc.explain.answer import Answer, Outcome, answer_for, answer_without_frontend
from bpfsvc.explain.context import node_context
from bpfsvc.explain.lately import failures_lately
from bpfsvc.explain.programs import Decision, decide
from bpfsvc.explain.question import Question
from bpfsvc.explain.reasons import CLIENTS, clients_seen, echo_reasons, reasons
from bpfsvc.explain.removal import removal_reasons
from bpfsvc.explain.schedule import load_reasons, locality_reasons, schedule_reasons, share_reasons
from bpfsvc.explain.spill import spill_reasons
from bpfsvc.inspect.reader import PinnedReader, Reader
from bpfsvc.model.answers import FailureAnswer
from bpfsvc.services.entries import Frontend, Place, frontend_text
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.restore import restore
from bpfsvc.services.scheduling.maps import LocalityEntry
from bpfsvc.services.service_map import Read

_LOOPBACK_INDEX = 1


class Agent(Protocol):
    """What an agent knows, or knew."""

    def known(self, namespace: str, name: str) -> ServiceFacts:
        """Return what it knows of a Service; raise :class:`NoAnswer`."""

    def failures(self) -> FailureAnswer | None:
        """Return what failed lately on the node; None if that is not known."""


Decide = Callable[[Question, int], Decision]
"""Returns the decision on a packet that arrives at the interface of an index."""


Decider = Callable[[Mapping[Frontend, Applied]], Decide]
"""Returns what decides, by the service port of each frontend."""


class LiveKernel:
    """Answers questions by the maps of a node; ``agent``: the agent of that node.

    ``own``: the node's addresses, packed.
    """

    def __init__(
        self,
        reader: Reader,
        read: Read,
        agent: Agent,
        decider: Decider,
        index: Callable[[str], int],
        moment: str = "now",
    ) -> None:
        """``index`` returns the index of an interface; ``moment``: of the entries, for people."""
        self._reader = reader
        self._moment = moment
        self._agent = agent
        self._index = index
        counters = reader.layout.maps["backend_counters"].max_entries
        restored = restore(read, Ids(counters - 1))
        self._owners = {
            frontend: port for port in restored.applied for frontend in port.frontends()
        }
        self._decide = decider(self._owners)
        self.own = {key for key, _ in reader.entries("node_addresses")}

    def answer(self, question: Question) -> Answer:
        """Return the decision of the program, and the entries that it used."""
        interface = self._index(question.interface) if question.interface else _LOOPBACK_INDEX
        decision = self._decide(question, interface)
        owner = self._owners.get(decision.frontend)
        if owner is None:
            rest = self._owners.get(Frontend.rest(question.destination))
            answer = answer_without_frontend(decision.verdict, question, self._owners)
            return replace(answer, lately=self._lately(rest))
        outcome = Outcome(
            decision.verdict,
            question,
            decision.frontend,
            owner,
            decision.client,
            self.own,
            decision.backend,
            spilled=decision.spilled,
        )
        loads = load_reasons(outcome, self._load, self._moment)
        kept = locality_reasons(outcome, self._kept)
        spill = spill_reasons(outcome, self._load)
        texts = (*self._reasons(outcome, decision), *spill, *kept, *loads)
        return replace(answer_for(outcome, texts), lately=self._lately(owner))

    def _lately(self, owner: Applied | None) -> tuple[str, ...]:
        failures = self._agent.failures() if owner else None
        return tuple(failures_lately(owner, failures)) if owner and failures else ()

    def _load(self, counters: int) -> Load:
        record = self._reader.layout.maps["backend_loads"].value
        raw = self._reader.value("backend_loads", struct.pack("=I", counters))
        return read_load(raw or bytes(record.size), record).total

    def _kept(self, entry: LocalityEntry) -> tuple[int, ...]:
        return kept_of(self._reader.layout, self._reader.value, entry)

    def _reasons(self, outcome: Outcome, decision: Decision) -> Iterator[str]:
        port = outcome.owner.port
        try:
            facts = self._agent.known(port.namespace, port.name)
        except NoAnswer as error:
            yield from _reasons_of_entries(outcome, decision)
            yield from removal_reasons(outcome, None)
            yield f"why other endpoints are not eligible is not known: {error.message}"
            return
        if facts.refused:
            yield f"the kernel does not hold the latest state of this Service: {facts.refused}"
        others = facts.conflicts.get(frontend_text(decision.frontend), ())
        node = node_context(facts.node)
        yield from reasons(outcome, facts.known, node, others, self._in_quarantine(outcome))
        yield from share_reasons(outcome, facts.shares)
        yield from removal_reasons(outcome, facts.drain_seconds)

    def _in_quarantine(self, outcome: Outcome) -> dict[Place, bool]:
        ejected = read_states(self._reader.entries("quarantined"), self._reader.layout)
        counters = outcome.owner.counters()
        return {backend: ejected[id_] for backend, id_ in counters.items() if id_ in ejected}


def live_kernel(pinned: Pinned, agent: Agent) -> LiveKernel:
    """Return what answers by pinned maps: the programs there decide."""
    decision = partial(decide, pinned)
    read = ServiceMaps(pinned).read
    return LiveKernel(PinnedReader(pinned), read, agent, lambda _: decision, _index)


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
