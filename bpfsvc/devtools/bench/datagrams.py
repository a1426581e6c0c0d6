"""UDP requests, each from a fresh source port: the backend that answers shows the kernel's choice.

Started bare, with the standard library alone. ``server CORE DESCRIPTOR WORD``
answers every datagram with its word. ``client CORE``: each line of standard input is a JSON array
[address, port, now, next]; it prints ``true`` when it has received the word ``now`` (at once, if
that is empty), and then asks until it receives ``next`` and prints the monotonic time of that
answer, or ``null`` if ``next`` does not come.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

_WAIT_MS = 2  # for one answer: many times what it takes
_ports = itertools.cycle(range(2_000, 65_000))
"""In turn: one chosen at random may still belong to a flow that the kernel remembers."""

_PATIENCE = 170.0  # seconds, less than the parent waits for this process


def serve(made: socket.socket, word: bytes) -> None:
    """Answer every datagram."""
    while True:
        _, peer = made.recvfrom(64)
        made.sendto(word, peer)


def ask_once(to: tuple[str, int]) -> bytes:
    """Ask from a new socket and port; return an empty answer if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("", next(_ports)))
        try:
            made.connect(to)
            made.send(b"?")
            poll = select.poll()
            poll.register(made, select.POLLIN)
            return made.recv(64) if poll.poll(_WAIT_MS) else b""
        except OSError:
            return b""  # an ICMP error is no answer either


def ask_until(to: tuple[str, int], word: bytes) -> float | None:
    """Ask until the answer is ``word``; return the moment, None if the answer does not come."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        answer, now = ask_once(to), time.monotonic()
        if answer == word:
            return now
        if now > deadline:
            return None


def ask_as_ordered() -> None:
    """Carry out the orders of standard input."""
    for line in sys.stdin:
        address, port, present, following = json.loads(line)
        to = (address, port)
        if present:
            ask_until(to, present.encode())
        print("true", flush=True)
        print(json.dumps(ask_until(to, following.encode())), flush=True)


def main(words: Sequence[str]) -> None:
    """Run ``server CORE DESCRIPTOR WORD`` or ``client CORE``."""
    os.sched_setaffinity(0, {int(words[1])})
    if words[0] == "server":
        serve(socket.socket(fileno=int(words[2])), words[3].encode())
    else:
        ask_as_ordered()
