"""A pod whose link is slow and full: its packets wait in a queue, as behind a large download."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bpfsvc.devtools.lab.pod import LabPod

_RATE = 8000
"""Bytes a second of the link; the queue is filled as fast as it empties."""

_BURST = 1600
_QUEUE = 0.3
"""Seconds that a packet waits."""

_DATA = 400
_HEADERS = 42


@contextmanager
def congested(pod: LabPod) -> Iterator[None]:
    """Have each packet of a pod wait for some 0.3 s, until the end of the block."""
    shaping = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{8 * _RATE}bit"]
    pod.run([*shaping, "burst", f"{_BURST}", "limit", "100000"])
    ending = threading.Event()
    with pod.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        download = threading.Thread(target=_fill, args=(sender, pod.node.address(4), ending))
        download.start()
        try:
            yield
        finally:
            ending.set()
            download.join()
            pod.run(["tc", "qdisc", "del", "dev", "eth0", "root"])


def _fill(sender: socket.socket, to: str, ending: threading.Event) -> None:
    began, sent = time.monotonic(), 0
    while not ending.wait(0.01):
        wanted = _BURST + _RATE * (time.monotonic() - began + _QUEUE)
        while sent < wanted:
            sender.sendto(b"x" * _DATA, (to, 9))
            sent += _DATA + _HEADERS
