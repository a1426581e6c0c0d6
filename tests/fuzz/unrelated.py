"""Frames that have nothing to do with Services: they leave byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from bpfsvc.base.address import pack
from tests.fuzz.frames import ACK, LINK, SCTP, TCP, UDP, End, Segment, frame
from tests.fuzz.world import CLIENTS, ENDPOINTS

_STRANGERS = {4: ["198.51.100.1", "100.64.0.9"], 6: ["2001:db8:77::1", "2001:db8:77::2"]}


def _between(random: Random, protocol: int) -> bytes:
    family = random.choice([4, 6])
    source = random.choice(CLIENTS[family] + ENDPOINTS[family])
    sender: End = pack(source), random.randrange(1, 65536)
    receiver: End = pack(random.choice(_STRANGERS[family])), random.randrange(1, 65536)
    payload = random.randbytes(random.randrange(64))
    segment = Segment(ACK, random.getrandbits(32), random.getrandbits(32), 500, payload=payload)
    return frame(protocol, sender, receiver, segment)


def _transport(random: Random) -> bytes:
    return _between(random, random.choice([TCP, UDP, SCTP]))


def _other_protocol(random: Random) -> bytes:
    """ICMP, GRE, ESP, OSPF and others; an echo request is one of them."""
    data = bytearray(_between(random, UDP))
    data[23 if data[12] == 8 else 20] = random.choice([1, 2, 4, 41, 47, 50, 58, 59, 89, 255])
    return bytes(data)


def _other_link(random: Random) -> bytes:
    """ARP, LLDP and others."""
    kind = random.choice([0x0806, 0x88CC, 0x8847, 0x0842, 0x6003])
    return _between(random, UDP)[: LINK - 2] + struct.pack(">H", kind) + random.randbytes(46)


def _of_vlan(random: Random) -> bytes:
    """It comes again without its tag, by the interface of its VLAN."""
    data = _between(random, TCP)
    tag = struct.pack(">HH", random.choice([0x8100, 0x88A8]), random.randrange(1, 4095))
    return data[: LINK - 2] + tag + data[LINK - 2 :]


def _no_version(random: Random) -> bytes:
    data = bytearray(_between(random, TCP))
    data[LINK] = random.randrange(0x00, 0x30)
    return bytes(data)


_KINDS: list[Callable[[Random], bytes]] = [
    *(_transport, _other_protocol, _other_link, _of_vlan, _no_version)
]
UNRELATED_KINDS = len(_KINDS)


def unrelated_frame(kind: int, number: int) -> bytes:
    """Return a frame of a kind."""
    return _KINDS[kind](Random(number))
