"""TCP transactions at full rate, one after another: the processes at both ends.

Client and server run on the same core. Then nothing waits, the core is always busy, and the time of
a transaction is what the whole path costs in CPU time, to within a percent; on two cores it would
be mostly the time in which a virtual machine wakes another core up. The CPU time of both processes
is reported beside it, which the rest of the machine cannot lengthen.

Started bare, with the standard library alone (see ``processes``). ``client``: each line of standard
input is a JSON array [kind, address, port, seconds], each answer [transactions, seconds, CPU
seconds]. Kinds: ``connect`` (connect, one byte there and back, close by the client) and ``request``
(one byte there and back on a connection that is kept).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

_BATCH = 16


def serve(listener: socket.socket) -> None:
    """Answer one connection after the other, one byte for each piece received."""
    while True:
        connection, _ = listener.accept()
        receive, send = connection.recv, connection.send
        while receive(64):
            send(b"x")
        connection.close()


def connect_again(to: tuple[str, int], deadline: float) -> int:
    """Make whole connections until ``deadline``; give their number."""
    done = 0
    while True:
        for _ in range(_BATCH):
            made = socket.socket()
            made.connect(to)
            made.send(b"x")
            made.recv(64)
            made.close()
        done += _BATCH
        if time.perf_counter() >= deadline:
            return done


def request_again(to: tuple[str, int], deadline: float) -> int:
    """Make requests on one connection until ``deadline``; give their number."""
    done = 0
    with socket.create_connection(to) as made:
        send, receive = made.send, made.recv
        while True:
            for _ in range(_BATCH):
                send(b"x")
                receive(64)
            done += _BATCH
            if time.perf_counter() >= deadline:
                return done


_KINDS: dict[str, Callable[[tuple[str, int], float], int]] = {
    "connect": connect_again,
    "request": request_again,
}


def cpu_clock(process: int) -> int:
    """Give the id of another process's CPU clock, as ``clock_getcpuclockid`` would."""
    return (~process << 3) | 2


def order(server: int) -> None:
    """Do what standard input says."""
    clock = cpu_clock(server)
    for line in sys.stdin:
        kind, address, port, seconds = json.loads(line)
        cpu = time.process_time() + time.clock_gettime(clock)
        start = time.perf_counter()
        done = _KINDS[kind]((address, port), start + seconds)
        took = time.perf_counter() - start
        cpu = time.process_time() + time.clock_gettime(clock) - cpu
        print(json.dumps([done, took, cpu]), flush=True)


def main(words: Sequence[str]) -> None:
    """Run ``server CORE DESCRIPTOR`` or ``client CORE SERVER-PROCESS``."""
    role, core, number = words[0], int(words[1]), int(words[2])
    os.sched_setaffinity(0, {core})
    if role == "server":
        serve(socket.socket(fileno=number))
    else:
        order(number)
