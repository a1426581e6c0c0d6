"""What a load balancer asks nodes, all the time: whether they have endpoints, whether they serve.

Each question is a new connection. Each has to be answered with the status that is true throughout.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.cluster.addresses import OUTSIDE
from tests.cluster.cluster import Cluster

_PAUSE: Final = 0.2
_PATIENCE: Final = 5.0
_TOLD: Final = 10


@dataclass(frozen=True)
class Question:
    """Asked at ``address`` and ``port`` by HTTP, to be answered with ``status``."""

    address: str
    port: int
    path: str
    status: int

    def __str__(self) -> str:
        return f"{self.address} port {self.port} {self.path}"


class HealthChecks:
    """Asks from ``outside`` within ``with``, each question five times a second.

    ``right``, ``wrong``: numbers of answers, ``unanswered`` those without. ``events``: the first of
    the latter two, with times (UTC).
    """

    def __init__(self, cluster: Cluster, questions: Iterable[Question]) -> None:
        self.right = self.wrong = self.unanswered = 0
        self.events: list[str] = []
        self._cluster = cluster
        self._told: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._go, args=(question,), daemon=True)
            for question in questions
        ]

    def __enter__(self) -> HealthChecks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _go(self, question: Question) -> None:
        with self._cluster.inside(OUTSIDE.name):
            while not self._ended.wait(_PAUSE):
                self._note(question, ask(question))

    def _note(self, question: Question, answer: int | str) -> None:
        with self._lock:
            if answer == question.status:
                self.right += 1
                return
            if isinstance(answer, int):
                self.wrong += 1
            else:
                self.unanswered += 1
            text = f"{question}: {answer}"
            self._told[text] += 1
            if self._told[text] <= _TOLD:
                self.events.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    @property
    def figures(self) -> dict[str, object]:
        """The numbers for the table."""
        return {
            "health checks": self.right,
            "wrong": self.wrong,
            "unanswered": self.unanswered,
        }

    def judge(self) -> None:
        """Raise ``AssertionError`` with the first events if an answer was wrong or missing."""
        if self.wrong or self.unanswered:
            count = f"{self.wrong} wrong, {self.unanswered} unanswered health checks"
            raise AssertionError("\n".join([count, *self.events]))


def ask(question: Question) -> int | str:
    """Return the status of the answer, or why there was none."""
    asking = http.client.HTTPConnection(question.address, question.port, timeout=_PATIENCE)
    try:
        asking.request("GET", question.path, headers={"Connection": "close"})
        return asking.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error) or repr(error)
    finally:
        asking.close()
