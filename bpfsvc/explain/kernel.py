"""The same questions asked of what an agent put into the kernel, without touching any of it.

The objects are not in the kernel, so the reasons end where the rows do: who is eligible is told,
and not why others are not.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from bpfsvc.address import unpack
from bpfsvc.adoption import adopt
from bpfsvc.datapath.pins import Pinned
from bpfsvc.datapath.tables import Tables
from bpfsvc.errors import UsageError
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.judgement import Judged, judge, unowned
from bpfsvc.explain.programs import Decision, decide
from bpfsvc.explain.question import Question
from bpfsvc.ids import Ids

_LOOPBACK_INDEX = 1


class Kernel:
    """Answers questions about the node whose maps are given."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        tables = Tables(pinned)
        counters = pinned.map("backend_counters").max_entries
        adopted = adopt(
            tables.names(),
            tables.frontends(),
            tables.backends(),
            Ids(counters - 1),
            tables.positions(),
            tables.ranges(),
        )
        self._owners = {frontend: one for one in adopted.programmed for frontend in one.frontends()}

    def answer(self, question: Question) -> Answer:
        """Ask the program that decides."""
        interface = _index(question.interface) if question.interface else _LOOPBACK_INDEX
        decision = decide(self._pinned, question, interface)
        verdict, frontend = decision.verdict, decision.frontend
        owner = self._owners.get(frontend)
        if owner is None:
            return unowned(verdict, question, self._owners)
        judged = Judged(verdict, question, frontend, owner, decision.client, decision.backend, b"")
        return judge(judged, tuple(_reasons(judged, decision)))


def _reasons(judged: Judged, decision: Decision) -> Iterator[str]:
    policies, policy = judged.owner.frontends()[judged.frontend], judged.policy
    yield f"the client is taken for {_CLIENTS[judged.client]}"
    if policies.restricted:
        let = "do not let" if decision.forbidden else "let"
        yield f"source ranges {let} {unpack(judged.question.source)} in"
    if policy.size:
        yield f"{policy.size} endpoints are eligible for such clients"
        yield "masqueraded" if policy.masquerade else "not masqueraded"
    else:
        yield "no endpoint is usable" + (" anywhere" if policy.reject else " for such clients")
    if policies.affinity_seconds:
        yield f"session affinity of {policies.affinity_seconds} s"
    yield "why other endpoints are not eligible is told with --manifests"


_CLIENTS = {"pod": "a pod of this node", "node": "this node", "other": "neither pod nor node"}


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise UsageError(
            f"there is no interface {name!r} here", "see the names with: ip link"
        ) from None
