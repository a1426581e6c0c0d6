"""The names of objects that a node knows, beside those that the agent's objects have."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.explain.agent_answers import AgentAnswers


def in_history(agent: AgentAnswers) -> Iterator[str]:
    """Yield names of Services, pods and nodes that the agent remembers."""
    try:
        for change in agent.history("", ""):
            for service in change.services:
                yield from service.split("/")
        for failure in agent.failed("", ""):
            yield from failure.service.partition(":")[0].split("/")
            for words in (failure.backend, *failure.clients):
                # An address comes first, then the names of a pod and its node.
                for word in words.split()[1:]:
                    yield from word.strip("(),").split("/")
    except BpfsvcError:
        return
