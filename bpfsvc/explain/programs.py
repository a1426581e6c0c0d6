"""The real programs, run on made-up packets: what they decide, and what they make of a packet.

Everything happens in maps that this process loaded for itself, in namespaces of its own: nothing is
attached, and no packet is sent.
"""

from __future__ import annotations

import random
import socket
import struct
from dataclasses import dataclass

from bpfsvc.address import family
from bpfsvc.datapath import bpf
from bpfsvc.datapath.pins import Pinned
from bpfsvc.errors import KernelError
from bpfsvc.explain.question import Question
from bpfsvc.rows import CLIENTS, Frontend, Place

_UNSPEC, _SHOT, _REDIRECT = 0xFFFFFFFF, 2, 7
_MEANING = {_SHOT: "drop", _REDIRECT: "reject"}

_QUESTION = struct.Struct("=16x 16sHBx 16sI")
"""``struct question`` (``bpf/decide.h``) up to the choice."""

_CHOICE = struct.Struct("=16sHBxI IBBxx")

_CLASS_UNKNOWN = 3

VERDICTS = ("none", "dnat", "reject", "drop", "drop")
"""The programs' verdicts by their numbers (``bpf/choice.h``)."""

_FORBIDDEN = 4
"""The last of them: by source ranges."""

_CONTEXT_BYTES, _IFINDEX_AT = 44, 40
"""``struct __sk_buff`` as far as ``ifindex``."""

_ETHERNET = 14
_OPENS_TCP = bytes([0x50, 0x02])
"""Data offset 5, SYN."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``choose_backend`` says: the verdict, the row that matched, and the choice.

    ``forbidden`` tells a drop by source ranges, ``client`` the class (:data:`CLIENTS`) that the
    client was found to be of.
    """

    verdict: str
    forbidden: bool
    frontend: Frontend
    client: str
    backend: Place


@dataclass(frozen=True, slots=True)
class Passage:
    """What became of a packet: a verdict in words and, where it goes on, its new ends."""

    verdict: str
    source: bytes = b""
    destination: Place = (b"", 0)


def decide(pinned: Pinned, question: Question, interface: int) -> Decision:
    """Ask for the decision alone. Nothing is noted or counted, so any node's maps will do."""
    client = CLIENTS.index("node") if question.is_of_node else _CLASS_UNKNOWN
    asked = _QUESTION.pack(
        question.destination,
        socket.htons(question.port),
        question.protocol,
        question.source,
        client,
    )
    verdict, data = _run(pinned, "decide", asked + bytes(_CHOICE.size), interface)
    if verdict >= len(VERDICTS):
        raise KernelError(f"the program decide failed ({verdict})")
    address, port, protocol, _, client = _QUESTION.unpack_from(data)
    backend, backend_port, *_ = _CHOICE.unpack_from(data, _QUESTION.size)
    return Decision(
        VERDICTS[verdict],
        verdict == _FORBIDDEN,
        Frontend(address, socket.ntohs(port), protocol),
        CLIENTS[client],
        (backend, socket.ntohs(backend_port)),
    )


def send(pinned: Pinned, question: Question, interface: int) -> Passage:
    """Send the packet through ingress and egress. It leaves connections behind in the maps."""
    frame = _frame(question, random.randrange(1024, 65536))
    verdict, routed = _run(pinned, "ingress", frame, interface)
    if verdict in _MEANING:
        return Passage(_MEANING[verdict])
    destination = _ends(routed)[1]
    if destination == (question.destination, question.port):
        return Passage("none")
    verdict, out = _run(pinned, "egress", routed, interface)
    if verdict != _UNSPEC:
        raise KernelError(f"a packet that was translated is dropped on its way out ({verdict})")
    (source, _), destination = _ends(out)
    return Passage("dnat", source, destination)


def _run(pinned: Pinned, program: str, data: bytes, interface: int) -> tuple[int, bytes]:
    context = bytearray(_CONTEXT_BYTES)
    struct.pack_into("=I", context, _IFINDEX_AT, interface)
    return bpf.program_test_run(pinned.program(program), data, context=bytes(context))


def _frame(question: Question, port: int) -> bytes:
    """Make an Ethernet frame. Checksums are left empty: the programs only change them."""
    ports = struct.pack("!HH", port, question.port)
    transport = {
        socket.IPPROTO_TCP: ports + bytes(8) + _OPENS_TCP + bytes(6),
        socket.IPPROTO_UDP: ports + struct.pack("!HH", 8, 0),
        socket.IPPROTO_SCTP: ports + bytes(8) + b"\x01\0\0\x14" + bytes(16),
    }[question.protocol]
    if family(question.destination) == 4:
        header = struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            0,
            20 + len(transport),
            0,
            0,
            64,
            question.protocol,
            0,
            question.source[12:],
            question.destination[12:],
        )
        ethertype = 0x0800
    else:
        header = struct.pack(
            "!IHBB16s16s",
            0x60000000,
            len(transport),
            question.protocol,
            64,
            question.source,
            question.destination,
        )
        ethertype = 0x86DD
    return bytes(12) + struct.pack("!H", ethertype) + header + transport


def _ends(frame: bytes) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """Give source and destination, each with its port."""
    if frame[12:14] == b"\x08\0":
        mapped = bytes(10) + b"\xff\xff"
        at = _ETHERNET + 12
        ends = [mapped + frame[at : at + 4], mapped + frame[at + 4 : at + 8]]
        at = _ETHERNET + 20
    else:
        at = _ETHERNET + 8
        ends = [frame[at : at + 16], frame[at + 16 : at + 32]]
        at = _ETHERNET + 40
    source, destination = struct.unpack_from("!HH", frame, at)
    return (ends[0], source), (ends[1], destination)
