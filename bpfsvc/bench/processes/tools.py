"""Runs tools for others: the process that stands in a node, so that to start one costs little.

A process is copied before it becomes another program. That takes milliseconds where it is as large
as the benchmark, which would be charged to the tool; this one is small, and copies nothing
(``posix_spawn``).

Started bare, with the standard library alone (see ``children``). Each line of standard input is a
JSON array, and is answered by a line:

* ``["take", [[words, text], ...]]``: what is to be run one after the other, and what each reads.
  ``true`` when all is at hand.
* ``["run", seconds, empty]``: run it; if ``empty`` is true, the first alone, and with nothing to
  read. What fails or is not done in time is the last. [moment of the start, moment of the end
  (``CLOCK_MONOTONIC``, seconds), words of the last, its exit status or null if it was ended, what
  it said].
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_NOT_FOUND = 127  # as a shell has it


class Taken(NamedTuple):
    """A tool, and the descriptor of what it reads."""

    words: list[str]
    reads: int


class Ended(NamedTuple):
    """How a tool ended."""

    words: list[str]
    status: int | None
    said: str


def take(words: list[str], text: str) -> Taken:
    """Put what a tool reads where it finds it without waiting for anybody."""
    reads = os.memfd_create("reads")
    with open(reads, "w", closefd=False) as stream:
        stream.write(text)
    return Taken(words, reads)


def run(tool: Taken, deadline: float, *, empty: bool) -> Ended:
    """Run a tool to its end, or to the deadline."""
    said = os.memfd_create("said")
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.lseek(tool.reads, 0, os.SEEK_SET)
    try:
        process = os.posix_spawnp(
            tool.words[0],
            tool.words,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing if empty else tool.reads, 0),
                (os.POSIX_SPAWN_DUP2, nothing, 1),
                (os.POSIX_SPAWN_DUP2, said, 2),
            ],
            setsigdef=[signal.SIGINT],  # which this process ignores
        )
        status = _wait(process, deadline)
        return Ended(tool.words, status, os.pread(said, 1 << 16, 0).decode(errors="replace"))
    except FileNotFoundError:
        return Ended(tool.words, _NOT_FOUND, "not found")
    finally:
        os.close(nothing)
        os.close(said)


def _wait(process: int, deadline: float) -> int | None:
    handle = os.pidfd_open(process)
    left = max(deadline - time.monotonic(), 0)
    in_time = select.select([handle], [], [], left)[0]
    os.close(handle)
    if not in_time:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if in_time else None


def _run_all(tools: Sequence[Taken], seconds: float, *, empty: bool) -> list[object]:
    began = time.monotonic()
    last = Ended([], 0, "")
    for tool in tools:
        last = run(tool, began + seconds, empty=empty)
        if last.status != 0:
            break
    return [began, time.monotonic(), *last]


def main(_words: Sequence[str]) -> None:
    """Do what standard input says."""
    taken: list[Taken] = []
    for line in sys.stdin:
        request, *rest = json.loads(line)
        if request == "take":
            for tool in taken:
                os.close(tool.reads)
            taken = [take(*each) for each in rest[0]]
            answer: object = True
        else:
            seconds, empty = rest
            answer = _run_all(taken[:1] if empty else taken, seconds, empty=empty)
        print(json.dumps(answer), flush=True)
