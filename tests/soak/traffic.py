"""What clients do all the time: connections of all kinds, to both nodes and from everywhere.

Loads run for the whole life: short connections and datagrams, and streams that must last as long.
Beside them conversations are opened, kept over some changes, and closed or reset.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from bpfsvc.devtools.lab.dial import OpenConnection, connect, outcome
from bpfsvc.devtools.lab.load import Kind, Load, more
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from tests.lab.testbed import Named, Testbed, at

KEPT = Named("kept", 60)
"""A Service whose endpoints change, but whose pods stay: no connection may be lost."""

ROLLED = Named("rolled", 61)
"""A Service whose pods are replaced: no new connection may fail."""

STEADY = Named("steady", 62)
"""A Service that does not change: no question may remain without an answer.

A question on its way to an endpoint that leaves may, because its answer has no connection any more.
"""

_PAUSE = 0.1
_STREAMS = 3
_EXCHANGES = 5
"""More than a load makes between two reports."""

_CONVERSATIONS = 30
_EXAMPLES = 3
"""Failures of a load that are told in detail."""


class _Way(NamedTuple):
    """From where a load goes, and to what."""

    source: Namespace
    address: str
    port: int


class Traffic:
    """All clients of a testbed, for at most so many ``seconds``."""

    def __init__(self, testbed: Testbed, chance: random.Random, seconds: float) -> None:
        self._chance = chance
        self._ways = [way for node in testbed.lab.nodes for way in _ways(testbed, node, KEPT)]
        self._loads: list[Load] = []
        self._names: dict[Load, str] = {}
        self._conversations: list[OpenConnection] = []
        self._told: Counter[str] = Counter()
        for node in testbed.lab.nodes:
            for way in _ways(testbed, node, KEPT):
                self._start(way, "stream", seconds)
            for way in _ways(testbed, node, STEADY):
                self._start(way, "datagram", seconds)
            for way in _ways(testbed, node, ROLLED):
                self._start(way, "connect", seconds)

    @classmethod
    @contextmanager
    def running(cls, testbed: Testbed, chance: random.Random, seconds: float) -> Iterator[Self]:
        """Have traffic in the block."""
        traffic = cls(testbed, chance, seconds)
        try:
            traffic.work_on()
            yield traffic
        finally:
            traffic.end()

    def _start(self, way: _Way, kind: Kind, seconds: float) -> None:
        spec = {"seconds": seconds, "interval": _PAUSE, "connections": _STREAMS}
        load = way.source.load(kind, way.address, way.port, **spec)
        self._loads.append(load)
        self._names[load] = f"{kind} from {way.source.name} to {at(way.address, way.port)}"

    def work_on(self) -> None:
        """Return when all clients have got further: what was in the middle before is over."""
        more(self._loads, _EXCHANGES)
        for conversation in list(self._conversations):
            self._talk(conversation)

    def converse(self) -> None:
        """Open some conversations; end some of those that are open, one way or the other."""
        for _ in range(self._chance.randint(1, 5)):
            way = self._chance.choice(self._ways)
            try:
                opened = connect(way.source, way.address, way.port)
                opened.who()
            except OSError as error:
                self.note(f"conversation: {outcome(error)}")
            else:
                self._conversations.append(opened)
        while len(self._conversations) > _CONVERSATIONS:
            ended = self._conversations.pop(self._chance.randrange(len(self._conversations)))
            self._chance.choice((ended.close, ended.reset))()

    def _talk(self, conversation: OpenConnection) -> None:
        try:
            problem = "" if conversation.echo(bytes(self._chance.randint(1, 3000))) else "wrong"
        except OSError as error:
            problem = outcome(error)
        if problem:
            self.note(f"conversation: {problem}")
            self._conversations.remove(conversation)
            conversation.close()

    def note(self, failure: str) -> None:
        """Count a failure that another part has seen."""
        self._told[failure] += 1

    @property
    def exchanges(self) -> int:
        """Answers to loads so far."""
        return sum(load.ok for load in self._loads)

    @property
    def failed(self) -> int:
        """Failures so far."""
        return sum(load.failed for load in self._loads) + self._told.total()

    def end(self) -> None:
        """End all; afterwards ``failures`` is complete."""
        for load in self._loads:
            result = load.stop()
            for what, count in result.failures.items():
                said = f"{self._names[load]}: {what} {result.examples[:_EXAMPLES]}"
                self._told[said] += count
        self._loads.clear()
        for conversation in self._conversations:
            conversation.close()
        self._conversations.clear()

    @property
    def failures(self) -> dict[str, int]:
        """What failed, by name, once all has ended."""
        return dict(self._told)


def _ways(testbed: Testbed, node: LabNode, of: Named) -> list[_Way]:
    """Return the ways to a Service through a node: from a pod, the node, and outside."""
    pod = next(iter(node.pods.values()))
    ways = []
    for family in testbed.lab.families:
        ways += [
            _Way(pod, of.vip(family), 80),
            _Way(node, of.vip(family), 80),
            _Way(testbed.client, node.address(family), of.node_port),
        ]
    return ways
