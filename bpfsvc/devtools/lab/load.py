"""A steady load from one namespace: its specification, its result, and the running load.

Three kinds of load:

* ``connect``: connect, one request, its answer, close; again and again, with a pause of
  ``interval`` seconds between two;
* ``stream``: connections opened once, then a request and its echo on each every ``interval``
  seconds (0: at full rate); a connection that fails is counted and not replaced;
* ``datagram``: one UDP request and its answer, each from a new socket (``fresh``) or all from one,
  with the same pause.

It is always bounded: by ``seconds``, and by ``count`` requests a worker if that is not 0. The work
is done by processes of its own (``pressure``), which report ten times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bpfsvc.devtools.lab.patience import readable, stretched

Kind = Literal["connect", "stream", "datagram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a load does. Times in seconds; ``expected`` names pods that may answer (empty: all)."""

    kind: Kind
    address: str
    port: int
    seconds: float = 10.0
    count: int = 0
    workers: int = 1
    connections: int = 10
    interval: float = 0.0
    fresh: bool = True
    timeout: float = 2.0
    expected: tuple[str, ...] = ()


class Result(NamedTuple):
    """The result of a load, over all workers.

    ``failures`` by ``refused``, ``reset``, ``closed`` (by the server), ``timeout``, ``wrong``
    (a pod that was not expected, or an echo that differs) or the errno's name; ``pods``: answers by
    pod (``stream``: connections by pod); ``latency``: microseconds at "50", "90", "99" percent and
    "max"; ``examples``: the first failures, with the time since the start and the client's socket.
    """

    seconds: float
    ok: int
    failures: dict[str, int]
    pods: dict[str, int]
    latency: dict[str, float]
    examples: list[str]

    @property
    def rate(self) -> float:
        """Successes a second."""
        return self.ok / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """The number of failures of all kinds."""
        return sum(self.failures.values())


class Load:
    """A running load, for the process that started it."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self.process = process
        self._name = name
        self.ok = 0
        self.failed = 0
        self._rest = b""
        self._result: Result | None = None

    def wait(self, condition: Callable[[Load], bool], timeout: float = 10.0) -> None:
        """Wait until ``condition`` holds of the counts ``ok`` and ``failed``.

        ``TimeoutError`` if it does not in time, or if the load ends before it does.
        """
        deadline = time.monotonic() + stretched(timeout)
        while not condition(self):
            if not self._read(deadline - time.monotonic()):
                status = self.process.poll()
                state = "is running" if status is None else f"has ended with {status}"
                counts = f"after {self.ok} successes and {self.failed} failures"
                raise TimeoutError(f"{self._name}: {counts}; the process {state}")

    def more(self, requests: int, timeout: float = 10.0) -> None:
        """Wait for so many more successes, counted from now."""
        more([self], requests, timeout)

    def catch_up(self) -> None:
        """Read all that was reported until now."""
        while self._read(0):
            pass

    def stop(self) -> Result:
        """End the load early; return its result."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.result(10.0)

    def result(self, timeout: float = 60.0) -> Result:
        """Wait for the end and return the result; ``TimeoutError`` if the load does not end."""
        deadline = time.monotonic() + stretched(timeout)
        while self._result is None:
            if not self._read(deadline - time.monotonic()):
                raise TimeoutError("the load returned no result")
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self._result

    def _read(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        if self._result is not None:
            return False
        if not readable(self.process.stdout, seconds):
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "seconds" not in said:
                self.ok, self.failed = said["ok"], said["failed"]
            else:
                self._result = Result(**said)
                self.ok, self.failed = self._result.ok, self._result.failed
        return bool(data)


def more(loads: Iterable[Load], requests: int, timeout: float = 10.0) -> None:
    """Wait for so many more successes of each load, counted from now."""
    goals = []
    for load in loads:
        load.catch_up()
        goals.append((load, load.ok + requests))
    for load, goal in goals:
        load.wait(lambda load, goal=goal: load.ok >= goal, timeout)  # type: ignore[misc]
