"""What the agent knows of Services, as JSON lines, and the answers that these give later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bpfsvc.explain.agent_answers import AgentAnswers, NoAnswer, ServiceFacts
from bpfsvc.model import EndpointSlice, Node, PodPlace, Service
from bpfsvc.model.answers import FailureAnswer
from bpfsvc.model.plain import from_plain, to_plain
from bpfsvc.services.cache import Known


class ServiceRecord(NamedTuple):
    """The fields of :class:`ServiceFacts`, and the pods of the endpoints: node and addresses."""

    namespace: str
    name: str
    node: Node
    service: Service | None
    slices: tuple[EndpointSlice, ...]
    pods: tuple[tuple[str, PodPlace], ...]
    conflicts: tuple[tuple[str, list[str]], ...]
    refused: str
    drain_seconds: int | None
    shares: tuple[tuple[bytes, int], ...]


def service_lines(agent: AgentAnswers, names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield what the agent knows of each of these Services; raise :class:`NoAnswer`."""
    for namespace, name in names:
        record = _record(namespace, name, agent.known(namespace, name))
        yield json.dumps(to_plain(record)) + "\n"


def _record(namespace: str, name: str, facts: ServiceFacts) -> ServiceRecord:
    return ServiceRecord(
        namespace,
        name,
        facts.node,
        facts.known.service,
        # The names of pods are kept apart, where they are whole.
        tuple(part.without_pods() for part in facts.known.slices),
        tuple(_pods(facts)),
        tuple(facts.conflicts.items()),
        facts.refused,
        facts.drain_seconds,
        tuple(facts.shares.items()),
    )


def _pods(facts: ServiceFacts) -> Iterator[tuple[str, PodPlace]]:
    own = set(facts.node.addresses)
    for part in facts.known.slices:
        for name, (address, traits) in zip(part.pod_names(), part.endpoints(), strict=False):
            if name:
                yield name, PodPlace(traits.node, (address,), address in own)


def names_in(lines: Iterable[str]) -> Iterator[str]:
    """Yield the names of nodes, namespaces, Services and pods in :func:`service_lines`."""
    for line in lines:
        record = from_plain(json.loads(line), ServiceRecord)
        yield from (record.namespace, record.name, record.node.name)
        for part in record.slices:
            yield part.name
            yield from (traits.node for traits in part.traits)
        for name, _ in record.pods:
            yield name


class RecordedAnswers:
    """Answers as the agent did: what :class:`AgentAnswers` answers to ``explain``."""

    def __init__(self, objects: Iterable[Any], failures: Any, node: str) -> None:
        """``objects``: the values of :func:`service_lines`; ``failures``: None if not recorded."""
        self.node_name = node
        self._records = {
            (record.namespace, record.name): record
            for record in (from_plain(value, ServiceRecord) for value in objects)
        }
        self._failures = from_plain(failures, FailureAnswer) if failures else None
        self._pods = self._places()

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service, None if there is none."""
        record = self._records.get((namespace, name))
        return record.service if record else None

    def services(self) -> list[str]:
        """Return the names of all Services."""
        return [f"{namespace}/{name}" for namespace, name in self._records]

    def known(self, namespace: str, name: str) -> ServiceFacts:
        """Return what the agent knew of a Service; raise :class:`NoAnswer`."""
        record = self._records.get((namespace, name))
        if record is None:
            raise NoAnswer("the sysdump does not have the objects of this Service")
        return ServiceFacts(
            node=record.node,
            known=Known(record.service, record.slices),
            conflicts=dict(record.conflicts),
            refused=record.refused,
            drain_seconds=record.drain_seconds,
            shares=dict(record.shares),
        )

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod was; only pods behind Services are known."""
        return self._pods.get((namespace, name))

    def failures(self) -> FailureAnswer | None:
        """Return what failed lately on the node."""
        return self._failures

    def _places(self) -> dict[tuple[str, str], PodPlace]:
        merged: dict[tuple[str, str], PodPlace] = {}
        for record in self._records.values():
            for name, known in record.pods:
                before = merged.get((record.namespace, name), known).addresses
                addresses = tuple(dict.fromkeys((*before, *known.addresses)))
                merged[record.namespace, name] = known._replace(addresses=addresses)
        return merged
