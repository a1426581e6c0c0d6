"""A flood of first packets: SYNs that open no connection, each with another source.

The sources are in 198.18.0.0/15 (the range of benchmarks, RFC 2544): replies to them end at the
switch of the lab. Frames differ only in fields whose changes cancel out in the checksums, so that
each takes three ``struct.pack_into``; that leaves Python fast enough to flood.

Started bare, with the standard library alone. Words: CORE, interface, its MAC,
the MAC of the node, JSON list of [address, port] to flood in turn, SYNs a second, seconds. Prints
[SYNs sent, seconds] at the end. It ends by itself.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

from bpfsvc.devtools.bench.packets.flows import SYN, Flow, Place

_ID, _SOURCE, _PORT = 18, 28, 34
"""In a frame: the IP id, the low half of the source address, and the TCP ports."""
_PORTS = range(1024, 65536)
_BATCH = 64


def maker(source_mac: bytes, target_mac: bytes, to: tuple[str, int]) -> Callable[[int], bytearray]:
    """Return a function that makes the n-th SYN to an IPv4 address and port, in one buffer."""
    flow = Flow(Place("198.18.0.0", 0), Place(*to), socket.IPPROTO_TCP)
    frame = bytearray(flow.frame(SYN, target_mac + source_mac, payload=b""))

    def make(number: int) -> bytearray:
        address = 1 + number // len(_PORTS) + number % 60_000
        port = _PORTS[number * 7919 % len(_PORTS)]
        # In ones' complement, 0xffff is 0: what the source address adds to the sums, the IP id and
        # the high half of the sequence number (0 in the template) take away; what the port adds,
        # the low half (1 in the template).
        struct.pack_into("!H", frame, _ID, 0xFFFF - address)
        struct.pack_into("!H", frame, _SOURCE, address)
        words = (port, to[1], 0xFFFF - address, 0x10000 - port)
        struct.pack_into("!HHHH", frame, _PORT, *words)
        return frame

    return make


def flood(
    interface: str, makers: Sequence[Callable[[int], bytearray]], rate: float, seconds: float
) -> tuple[int, float]:
    """Send ``rate`` SYNs a second, or as many as one core can; return how many in what time."""
    sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((interface, 0))
        start = now = time.monotonic()
        while now - start < seconds:
            if sent > (now - start) * rate:
                time.sleep(0.0005)
            else:
                for number in range(sent, sent + _BATCH):
                    raw.send(makers[number % len(makers)](number))
                sent += _BATCH
            now = time.monotonic()
    return sent, now - start


def main(words: Sequence[str]) -> None:
    """Flood as the words say."""
    core, interface, source, target, wanted, rate, seconds = words
    os.sched_setaffinity(0, {int(core)})
    macs = [bytes.fromhex(mac.replace(":", "")) for mac in (source, target)]
    makers = [maker(macs[0], macs[1], (address, port)) for address, port in json.loads(wanted)]
    print(json.dumps(flood(interface, makers, float(rate), float(seconds))), flush=True)
