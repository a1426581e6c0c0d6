"""What the page of all nodes asks for: each agent's own page, with the rights of who runs this.

The answers about one node are that node's; what they cost is there, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.kube.agents import AgentPages, AgentPod
from bpfsvc.page.questions import Answers, NotHere, Query
from bpfsvc.page.recent import Recent

RELAYED = tuple(
    f"/api/{name}"
    for name in (
        *("status", "services", "service", "history", "events"),
        *("explain", "explain-live"),
    )
)
"""What the page of a node asks for."""

_AT_ONCE = 16
"""Nodes that are asked at the same time."""

_STATUS = ("well", "carries_well", "head", "lines", "failing", "refusing")


class FleetAnswers:
    """Answers about all nodes, and about each; any thread may ask."""

    def __init__(self, pages: AgentPages) -> None:
        self._pages = pages
        self._agents = Recent(self._by_node)
        self._fleet = Recent(self._read)

    def by_path(self) -> Answers:
        """Return all answers."""
        return {"/api/fleet": self.fleet, **{path: self._relay(path) for path in RELAYED}}

    def fleet(self, _: Query) -> dict[str, Any]:
        """Return the health of each node, or why it has not answered."""
        answer, at = self._fleet.get()
        return {"at": at, **answer}

    def _read(self) -> dict[str, Any]:
        agents, _ = self._agents.get()
        note, names = "", set(agents)
        try:
            names.update(self._pages.nodes())
        except BpfsvcError as error:
            note = f"nodes without an agent are not shown: {error.message}"
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            rows = list(threads.map(self._row, sorted(names)))
        return {"nodes": rows, "note": note}

    def _row(self, node: str) -> dict[str, Any]:
        try:
            status = self._ask(node, "/api/status", {})
        except BpfsvcError as error:
            return {"node": node, "problem": error.message}
        return {"node": node, "problem": "", **{name: status.get(name) for name in _STATUS}}

    def _relay(self, path: str) -> Callable[[Query], dict[str, Any]]:
        return lambda query: self._ask(query.get("node", ""), path, query)

    def _ask(self, node: str, path: str, query: Query) -> dict[str, Any]:
        """Return a node's answer; raises ``BpfsvcError`` with the reason why there is none."""
        agent = self._agents.get().value.get(node)
        if agent is None:
            raise NotHere(f"no Pod of an agent is on {node or 'this node'}", "choose another node")
        if agent.trouble:
            raise BpfsvcError(f"{agent.trouble} ({agent.name})")
        asked = urlencode([pair for pair in query.items() if pair[0] != "node"])
        status, body = self._pages.ask(agent.name, f"{path}?{asked}")
        try:
            answer: dict[str, Any] = json.loads(body)
        except ValueError:
            raise BpfsvcError(f"the page of {agent.name} answers {status}, and no JSON") from None
        if "error" in answer and status >= 400:
            raise BpfsvcError(answer["error"], answer.get("hint", ""))
        return answer

    def _by_node(self) -> Mapping[str, AgentPod]:
        # The first of a node is the one that works.
        return {agent.node: agent for agent in reversed(self._pages.agents()) if agent.node}
