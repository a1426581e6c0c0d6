"""Question in, answer out: the programs decide, the books name, the objects tell why."""

from __future__ import annotations

from bpfsvc.address import unpack
from bpfsvc.cluster import Cluster
from bpfsvc.errors import KernelError
from bpfsvc.explain.account import Circumstances, account
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.judgement import Judged, judge, unowned
from bpfsvc.explain.programs import decide, send
from bpfsvc.explain.question import Question
from bpfsvc.explain.situation import Situation
from bpfsvc.explain.stage import Stage


class Explainer:
    """Answers questions about one node and its objects, on a stage."""

    def __init__(self, stage: Stage, situation: Situation, cluster: Cluster) -> None:
        self._stage = stage
        self._situation = situation
        self._cluster = cluster
        books = stage.set(situation, cluster)
        self._owners = {frontend: one for one in books.ledger for frontend in one.frontends()}

    def answer(self, question: Question) -> Answer:
        """Run the programs on it, and tell why.

        Of a packet, both what is decided and what really becomes of it is looked at.
        """
        stage = self._stage
        stage.mark_interface(self._situation, question.interface)
        decision = decide(stage.pinned, question, stage.interface)
        verdict, client = decision.verdict, decision.client
        chosen, seen = decision.backend, b""
        if not question.is_of_node:
            passage = send(stage.pinned, question, stage.interface)
            stage.forget_traffic()
            if passage.verdict != verdict:
                raise KernelError(
                    f"the programs contradict each other about {unpack(question.destination)}:"
                    f" {verdict} and {passage.verdict}"
                )
            chosen, seen = passage.destination, passage.source
        owner = self._owners.get(decision.frontend)
        if owner is None:
            return unowned(verdict, question, self._owners)
        judged = Judged(verdict, question, decision.frontend, owner, client, chosen, seen)
        reasons = account(
            owner.port,
            self._cluster.lookup((owner.port.namespace, owner.port.name)),
            Circumstances(
                question,
                decision.frontend,
                client,
                owner.frontends()[decision.frontend],
                self._situation.context,
            ),
        )
        return judge(judged, tuple(reasons))
