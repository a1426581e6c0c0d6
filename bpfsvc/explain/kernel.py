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
from bpfsvc.explain.answer import VERDICTS, Answer
from bpfsvc.explain.judgement import Judged, judge, unowned
from bpfsvc.explain.programs import decide
from bpfsvc.explain.question import Question
from bpfsvc.ids import Ids

_LOOPBACK_INDEX = 1
_ONLY_ROW = bytes(4)


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
        verdict = VERDICTS[decision.verdict]
        owner = self._owners.get(decision.frontend)
        if owner is None:
            return unowned(verdict, question, self._owners)
        judged = Judged(
            verdict,
            question,
            decision.frontend,
            owner,
            self._client_class(question, interface),
            decision.backend,
            b"",
        )
        return judge(judged, tuple(self._reasons(judged)))

    def _client_class(self, question: Question, interface: int) -> str:
        """Name the class of a client as ``client_class`` of ``bpf/node.h`` finds it."""
        if question.is_of_node:
            return "node"
        layout = self._pinned.layout.maps
        settings = layout["settings"].value.unpack(
            self._pinned.map("settings").lookup(_ONLY_ROW) or bytes(layout["settings"].value.size)
        )
        row = self._pinned.map("interfaces").lookup(interface.to_bytes(4, "little"))
        if settings["detect_interfaces"] and row and layout["interfaces"].value.unpack(row)["pods"]:
            return "pod"
        for name in ("v4", "v6"):
            network, mask = settings[f"pod_network_{name}"], settings[f"pod_mask_{name}"]
            if settings[f"detect_pods_{name}"] and _within(question.source, network, mask):
                return "pod"
        is_own = self._pinned.map("node_addresses").lookup(question.source) is not None
        return "node" if is_own else "other"

    def _reasons(self, judged: Judged) -> Iterator[str]:
        policies, policy = judged.owner.frontends()[judged.frontend], judged.policy
        yield f"the client is taken for {_CLIENTS[judged.client]}"
        if policies.restricted:
            inside = judged.verdict != "drop" or not policy.size
            yield f"source ranges {'let' if inside else 'do not let'} {_source(judged)} in"
        if policy.size:
            yield f"{policy.size} endpoints are eligible for such clients"
            yield "masqueraded" if policy.masquerade else "not masqueraded"
        else:
            yield "no endpoint is usable" + (" anywhere" if policy.reject else " for such clients")
        if policies.affinity_seconds:
            yield f"session affinity of {policies.affinity_seconds} s"
        yield "why other endpoints are not eligible is told with --manifests"


_CLIENTS = {"pod": "a pod of this node", "node": "this node", "other": "neither pod nor node"}


def _source(judged: Judged) -> str:
    return unpack(judged.question.source)


def _within(address: bytes, network: object, mask: object) -> bool:
    if not isinstance(network, bytes) or not isinstance(mask, bytes):
        return False
    return all(one & bits == other for one, bits, other in zip(address, mask, network, strict=True))


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise UsageError(
            f"there is no interface {name!r} here", "see the names with: ip link"
        ) from None
