"""The processes that produce the load of a ``load.Spec``.

Each of ``workers`` is a process with blocking sockets. The kernel enforces their time limits
(SO_RCVTIMEO, SO_SNDTIMEO), so Python needs no poll per call. Counters are in shared memory. Every
0.1 s, and at the end, one line of JSON goes to standard output. SIGTERM ends the load early and
cleanly.

The processes use the standard library only (see ``namespace.script``).
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import select
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bpfsvc.devtools.lab.load import Result, Spec

_PROGRESS = 0.1  # seconds between two lines
_EXAMPLES = 20  # failures reported in detail
_REQUEST = b"who\n"
_PING = b"." * 63 + b"\n"
_ANSWER_HEAD = len(b'{"pod": "')
_STEPS = 16  # latency buckets for each doubling: 4 % apart


class Board:
    """Shared memory: a stop flag, and two counters for each worker."""

    def __init__(self, workers: int) -> None:
        self.memory = mmap.mmap(-1, 8 + 16 * workers)
        self.counts = memoryview(self.memory).cast("q")
        self.workers = workers

    def stop(self) -> None:
        """Make every worker end."""
        self.counts[0] = 1

    def sums(self) -> dict[str, int]:
        """Return the counters so far."""
        places = range(1, 1 + 2 * self.workers, 2)
        return {
            "ok": sum(self.counts[at] for at in places),
            "failed": sum(self.counts[at + 1] for at in places),
        }


@dataclass(slots=True)
class Worker:
    """One process of a load: its loop and its counts."""

    spec: Spec
    board: Board
    index: int
    start: float
    parent: int
    failures: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Work until stopped; return the counts."""
        if self.spec.kind == "connect":
            self._connect_again()
        elif self.spec.kind == "stream":
            self._keep_streams()
        else:
            self._send_datagrams()
        return {
            "failures": self.failures,
            "pods": self.pods,
            "buckets": self.buckets,
            "examples": self.examples,
        }

    def _rounds(self) -> Iterator[None]:
        """Yield once per round until it is time to end."""
        counts, index = self.board.counts, self.index
        deadline = self.start + self.spec.seconds
        limit = self.spec.count or 1 << 62
        # A worker must not run for ever after its parent was killed.
        while (
            not counts[0]
            and time.monotonic() < deadline
            and counts[index] + counts[index + 1] < limit
            and os.getppid() == self.parent
        ):
            yield
            if self.spec.interval and self.spec.kind != "stream":
                time.sleep(self.spec.interval)

    def _succeed(self, since: int) -> None:
        self.board.counts[self.index] += 1
        took = time.perf_counter_ns() - since
        self.buckets[int(math.log2(took) * _STEPS)] += 1

    def _fail(self, what: str, made: socket.socket | None = None, detail: object = "") -> None:
        self.board.counts[self.index + 1] += 1
        self.failures[what] += 1
        if len(self.examples) < _EXAMPLES:
            own = made.getsockname()[:2] if made is not None else ""
            self.examples.append(f"{time.monotonic() - self.start:.3f}s {what} {own} {detail}")

    def _open(self, kind: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.spec.address else socket.AF_INET
        made = socket.socket(family, kind)
        whole = int(self.spec.timeout)
        limit = struct.pack("qq", whole, int((self.spec.timeout - whole) * 1e6))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return made

    def _pod(self, line: bytes, made: socket.socket) -> str | None:
        """Return the pod that answered, None (and count a failure) if it is not expected."""
        pod = line[_ANSWER_HEAD : line.find(b'"', _ANSWER_HEAD)].decode(errors="replace")
        if self.spec.expected and pod not in self.spec.expected:
            self._fail("wrong", made, pod)
            return None
        return pod

    def _connect_again(self) -> None:
        target = (self.spec.address, self.spec.port)
        for _ in self._rounds():
            since = time.perf_counter_ns()
            made = self._open(socket.SOCK_STREAM)
            try:
                made.connect(target)
                made.send(_REQUEST)
                pod = self._pod(_line(made), made)
                if pod is not None:
                    self.pods[pod] += 1
                    self._succeed(since)
            except OSError as error:
                self._fail(_name(error), made, error)
            made.close()

    def _keep_streams(self) -> None:
        streams: list[socket.socket] = []
        for _ in range(self.spec.connections):
            made = self._open(socket.SOCK_STREAM)
            try:
                made.connect((self.spec.address, self.spec.port))
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.send(_REQUEST)
                pod = self._pod(_line(made), made)
            except OSError as error:
                self._fail(_name(error), made, error)
                continue
            if pod is not None:
                self.pods[pod] += 1
                streams.append(made)
        for _ in self._rounds():
            if not streams:
                return
            begun = time.monotonic()
            streams = [made for made in streams if self._exchange(made)]
            if self.spec.interval:
                time.sleep(max(0.0, begun + self.spec.interval - time.monotonic()))

    def _exchange(self, made: socket.socket) -> bool:
        since = time.perf_counter_ns()
        try:
            made.send(_PING)
            answer = _line(made)
        except OSError as error:
            self._fail(_name(error), made, error)
            return False
        if answer != _PING:
            self._fail("wrong", made, answer[:80])
            return False
        self._succeed(since)
        return True

    def _send_datagrams(self) -> None:
        target = (self.spec.address, self.spec.port)
        made: socket.socket | None = None
        for _ in self._rounds():
            since = time.perf_counter_ns()
            made = made or self._open(socket.SOCK_DGRAM)
            try:
                made.connect(target)
                made.send(_REQUEST)
                pod = self._pod(made.recv(1 << 16), made)
                if pod is not None:
                    self.pods[pod] += 1
                    self._succeed(since)
            except OSError as error:
                self._fail(_name(error), made, error)
            if self.spec.fresh:
                made.close()
                made = None


def _line(made: socket.socket) -> bytes:
    line = made.recv(4096)
    while not line.endswith(b"\n"):
        more = made.recv(4096)
        if not more:
            raise _ServerClosedError
        line += more
    return line


class _ServerClosedError(OSError):
    """The server closed a connection that it should have kept."""


def _name(error: OSError) -> str:
    if isinstance(error, _ServerClosedError):
        return "closed"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "reset"
    if isinstance(error, TimeoutError | BlockingIOError):
        return "timeout"
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _latency(buckets: Counter[int]) -> dict[str, float]:
    """Return percentiles, in microseconds, from counts by logarithmic bucket."""
    total = sum(buckets.values())
    if not total:
        return {}
    percentiles: dict[str, float] = {}
    passed = 0
    for bucket in sorted(buckets):
        passed += buckets[bucket]
        for percent in (50, 90, 99):
            if passed * 100 >= percent * total:
                percentiles.setdefault(str(percent), _microseconds(bucket))
    percentiles["max"] = _microseconds(max(buckets))
    return percentiles


def _microseconds(bucket: int) -> float:
    return round(float(2 ** ((bucket + 0.5) / _STEPS)) / 1000, 1)


def _start(spec: Spec, board: Board, number: int, start: float) -> tuple[int, int]:
    """Fork a worker; return its process id and the pipe for its counts."""
    reading, writing = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        counts = Worker(spec, board, 1 + 2 * number, start, parent).run()
        with os.fdopen(writing, "w") as pipe:
            json.dump(counts, pipe)
        os._exit(0)
    os.close(writing)
    return process, reading


def main(words: Sequence[str]) -> None:
    """Run the load that ``words[0]`` specifies."""
    spec = Spec(**json.loads(words[0]))
    board = Board(spec.workers)
    signal.signal(signal.SIGTERM, lambda *_: board.stop())
    start = time.monotonic()
    workers = [_start(spec, board, number, start) for number in range(spec.workers)]
    pipes = {reading: b"" for _, reading in workers}
    open_pipes = list(pipes)
    while open_pipes:
        for reading in select.select(open_pipes, [], [], _PROGRESS)[0]:
            if data := os.read(reading, 1 << 16):
                pipes[reading] += data
            else:
                open_pipes.remove(reading)
        print(json.dumps(board.sums()), flush=True)
    seconds = time.monotonic() - start
    failures, pods, buckets = Counter[str](), Counter[str](), Counter[int]()
    examples: list[str] = []
    for process, reading in workers:
        os.waitpid(process, 0)
        said = cast(dict[str, Any], json.loads(pipes[reading]))
        failures.update(said["failures"])
        pods.update(said["pods"])
        buckets.update({int(bucket): number for bucket, number in said["buckets"].items()})
        examples += said["examples"]
    result = Result(
        seconds, board.sums()["ok"], failures, pods, _latency(buckets), examples[:_EXAMPLES]
    )
    print(json.dumps(result._asdict()), flush=True)
