"""A process that sends frames at a rate, each from another made-up client.

It uses the standard library only, and begins with frames that have valid checksums. A 16-bit word
of a frame counts up; words that the same checksums cover count down: the checksums stay valid.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_TICK = 0.002
_WORD = 0xFFFF


class Varied(NamedTuple):
    """A word of a frame that is another one in each frame, and the words that make up for it."""

    word: int
    against: Sequence[int]


class Sending(NamedTuple):
    """What to send: frames in hexadecimal, in turn; ``rate`` frames a second."""

    interface: str
    frames: Sequence[str]
    varied: Sequence[Varied]
    rate: int
    seconds: float


def send(wanted: Sending) -> int:
    """Send; return how many frames the interface took."""
    frames = [bytearray.fromhex(text) for text in wanted.frames]
    number = sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        out.bind((wanted.interface, 0))
        begin = time.monotonic()
        end = begin + wanted.seconds
        while (now := time.monotonic()) < end:
            due = int((now - begin) * wanted.rate) - number
            for _ in range(due):
                frame = frames[number % len(frames)]
                number += 1
                for word, against in wanted.varied:
                    _add(frame, word, 1)
                    for other in against:
                        _add(frame, other, _WORD - 1)
                try:
                    sent += out.send(frame) > 0
                except OSError:
                    continue  # the queue of the interface is full
            time.sleep(_TICK)
    return sent


def _add(frame: bytearray, at: int, number: int) -> None:
    """Add to a word as checksums do: in ones' complement."""
    total = (frame[at] << 8 | frame[at + 1]) + number
    total = (total & _WORD) + (total >> 16)
    frame[at], frame[at + 1] = total >> 8, total & 0xFF


def main() -> None:
    """Send what the first argument asks for; print how many frames were sent."""
    wanted = json.loads(sys.argv[1])
    varied = [Varied(*pair) for pair in wanted.pop("varied")]
    print(send(Sending(varied=varied, **wanted)), flush=True)


if __name__ == "__main__":
    main()
