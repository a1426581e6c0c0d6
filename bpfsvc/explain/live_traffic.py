"""What becomes of the connections that a question is about, seen after the answer.

The answer says what the programs would do with a packet. The events of the agent say what they do
with the packets that come, and what other parts of the node do with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.base.texts import count_text
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.question import Question
from bpfsvc.inspect.events.summary import Summary
from bpfsvc.inspect.events.texts import loss_text
from bpfsvc.model.events import Event


class LiveTraffic:
    """Counts events of the client and the Service of one question."""

    def __init__(self, question: Question, answer: Answer, own: Collection[bytes]) -> None:
        """``own``: the node's addresses, packed: its processes connect from any of them."""
        self._protocol = PROTOCOL_NAMES[question.protocol]
        self._service = answer.service
        self._frontend = (unpack(question.destination), question.port)
        self._target = answer.service or endpoint_text(question.destination, question.port)
        self._source = unpack(question.source)
        self._clients = {self._source, *(map(unpack, own) if question.is_of_node else ())}
        self._summary = Summary()
        self._lost: list[Event] = []
        self._seen = self._made = self._others = 0

    def add(self, event: Event) -> None:
        """Count an event, if it is one of this Service."""
        if event.lost:
            self._lost.append(event)
        elif not self._is_of_service(event):
            return
        elif event.client.address in self._clients:
            self._seen += event.sample
            self._made += event.sample if event.kind == "made" else 0
            self._summary.add(event)
        elif event.kind == "made":
            self._others += event.sample

    def lines(self, seconds: float) -> Iterator[str]:
        """Yield what was seen in so many seconds, for people."""
        head = f"live for {seconds:.0f} s: "
        others = f"; other clients made {count_text(self._others, 'connection')}"
        about = f"of {self._source} to {self._target}{others if self._others else ''}"
        if self._seen:
            yield f"{head}{count_text(self._made, 'connection')} {about}"
            yield from (f"  {line}" for line in self._summary.lines())
        else:
            yield f"{head}nothing was seen {about}"
        yield from (f"  {loss_text(event)}" for event in self._lost)

    def to_object(self, seconds: float) -> dict[str, Any]:
        """Return the same as an object for JSON."""
        return {
            "seconds": round(seconds, 1),
            "made": self._made,
            "made_by_other_clients": self._others,
            "backends": self._summary.to_objects(),
            "lost_events": sum(event.lost for event in self._lost),
        }

    def _is_of_service(self, event: Event) -> bool:
        if event.protocol != self._protocol:
            return False
        if self._service:
            return f"{event.service.namespace}/{event.service.name}" == self._service
        return (event.frontend.address, event.frontend.port) == self._frontend
