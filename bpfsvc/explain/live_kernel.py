"""The running agent's kernel: its entries answer questions, and nothing is changed.

The objects are not in the kernel, so the agent is asked for them. Where the agent does not answer,
the reasons end at the entries.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bpfsvc.base.address import unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.maps.backend_loads import Load, read_load
from bpfsvc.datapath.maps.backend_outcomes import read_states
from bpfsvc.datapath.maps.localities import kept_of
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.explain.agent_answers import AgentAnswers, NoAnswer
from bpfsvc.explain.answer import Answer, Outcome, answer_for, answer_without_frontend
from bpfsvc.explain.context import node_context
from bpfsvc.explain.lately import failures_lately
from bpfsvc.explain.programs import Decision, decide
from bpfsvc.explain.question import Question
from bpfsvc.explain.reasons import CLIENTS, clients_seen, echo_reasons, reasons
from bpfsvc.explain.removal import removal_reasons
from bpfsvc.explain.schedule import load_reasons, locality_reasons, schedule_reasons, share_reasons
from bpfsvc.explain.spill import spill_reasons
from bpfsvc.services.entries import Frontend, Place, frontend_text
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.restore import restore

_LOOPBACK_INDEX = 1


class LiveKernel:
    """Answers questions by the maps of a node; ``agent``: the agent of that node.

    ``own``: the node's addresses, packed.
    """

    def __init__(self, pinned: Pinned, agent: AgentAnswers) -> None:
        self._pinned = pinned
        self._agent = agent
        tables = ServiceMaps(pinned)
        counters = pinned.map("backend_counters").max_entries
        restored = restore(tables.read, Ids(counters - 1))
        self._owners = {
            frontend: port for port in restored.applied for frontend in port.frontends()
        }
        self.own = {key for key, _ in pinned.map("node_addresses").items()}

    def answer(self, question: Question) -> Answer:
        """Return the decision of the program, and the entries that it used."""
        interface = _index(question.interface) if question.interface else _LOOPBACK_INDEX
        decision = decide(self._pinned, question, interface)
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
        loads = load_reasons(outcome, self._load)
        kept = locality_reasons(outcome, partial(kept_of, self._pinned))
        spill = spill_reasons(outcome, self._load)
        texts = (*self._reasons(outcome, decision), *spill, *kept, *loads)
        return replace(answer_for(outcome, texts), lately=self._lately(owner))

    def _lately(self, owner: Applied | None) -> tuple[str, ...]:
        failures = self._agent.failures() if owner else None
        return tuple(failures_lately(owner, failures)) if owner and failures else ()

    def _load(self, counters: int) -> Load:
        raw = self._pinned.map("backend_loads").lookup(struct.pack("=I", counters)) or b""
        return read_load(raw, self._pinned.layout.maps["backend_loads"].value).total

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
        ejected = read_states(self._pinned.map("quarantined").items(), self._pinned.layout)
        counters = outcome.owner.counters()
        return {backend: ejected[id_] for backend, id_ in counters.items() if id_ in ejected}


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
