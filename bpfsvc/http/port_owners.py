"""Who holds the ports of health checks: asked without waiting for an answer.

A program may accept connections and never answer, as a kube-proxy that hangs, and it may hold the
ports of all Services. So the questions are asked together, in the thread that answers the health
checks, and that thread waits for clients and for answers alike.
"""

from __future__ import annotations

import json
import selectors
import time
from collections.abc import Collection

from bpfsvc.base.address import unpack
from bpfsvc.base.http_client import AnswerReader, begin_connect, encode_get
from bpfsvc.http.ports import ListenerKey

_SECONDS = 1.0
"""For a program to answer."""

_PART_BYTES = 1 << 14


class Question:
    """A question at a port: which Service does the program there answer for?"""

    def __init__(self, key: ListenerKey) -> None:
        """Begin to connect; raise ``OSError`` if the address cannot be reached."""
        self.key = key
        self.client = begin_connect((unpack(key.address), key.port))
        self.deadline = time.monotonic() + _SECONDS
        self._reader = AnswerReader()

    def send(self) -> None:
        """Send the question, once the client is connected."""
        self.client.send(encode_get("/"))

    def receive(self) -> bool | None:
        """True if the answer is kube-proxy's for the same Service; None while it is incomplete.

        Raises ``OSError`` or ``ValueError`` for an answer that is not JSON over HTTP.
        """
        answer = self._reader.feed(self.client.recv(_PART_BYTES))
        if answer is None:
            return None
        value = json.loads(answer.body)
        namespace, name = self.key.service
        wanted = {"namespace": namespace, "name": name}
        return isinstance(value, dict) and value.get("service") == wanted


class PortOwners:
    """The questions at ports, and their answers, in the thread that waits on ``selector``."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._questions: dict[ListenerKey, Question] = {}
        self._answers: dict[ListenerKey, bool] = {}

    def answers_for(self, key: ListenerKey) -> bool | None:
        """True if the program at a port answers as kube-proxy does, for the same Service.

        None: the program is asked now, and :meth:`handle` or :meth:`expire` return the key when
        there is an answer, for the next call.
        """
        if key in self._questions:
            return None
        if key in self._answers:
            return self._answers.pop(key)
        try:
            question = Question(key)
        except OSError:
            return False
        self._questions[key] = question
        self._selector.register(question.client, selectors.EVENT_WRITE, question)
        return None

    def handle(self, question: Question) -> ListenerKey | None:
        """Go on with a question whose client is ready; return its key if there is an answer."""
        if self._questions.get(question.key) is not question:
            return None
        try:
            if self._selector.get_key(question.client).events & selectors.EVENT_WRITE:
                question.send()
                self._selector.modify(question.client, selectors.EVENT_READ, question)
                return None
            answers_for = question.receive()
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            answers_for = False
        return None if answers_for is None else self._finish(question, answers_for=answers_for)

    def expire(self, now: float) -> list[ListenerKey]:
        """Give up questions without an answer in time; return their keys."""
        late = [question for question in self._questions.values() if question.deadline < now]
        return [self._finish(question, answers_for=False) for question in late]

    def keep(self, keys: Collection[ListenerKey]) -> None:
        """Ask about no other ports than these any more."""
        for question in [self._questions[key] for key in self._questions.keys() - set(keys)]:
            self._end(question)
        for key in self._answers.keys() - set(keys):
            del self._answers[key]

    def close(self) -> None:
        """Ask no more."""
        self.keep(())

    def _finish(self, question: Question, *, answers_for: bool) -> ListenerKey:
        self._end(question)
        self._answers[question.key] = answers_for
        return question.key

    def _end(self, question: Question) -> None:
        del self._questions[question.key]
        self._selector.unregister(question.client)
        question.client.close()
