"""Run the real programs on made-up packets, by BPF_PROG_TEST_RUN.

:func:`decide` asks for the decision alone and changes nothing, so it may be used on the maps of a
running agent. :func:`send` needs maps of this process. Nothing is attached, no packet is sent.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bpfsvc.base.address import family
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.layout import Value
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.explain.question import Question
from bpfsvc.services.entries import Frontend, Place

_UNSPEC, _SHOT, _REDIRECT = 0xFFFFFFFF, 2, 7
_VERDICT_OF = {_SHOT: "drop", _REDIRECT: "reject"}

_FORBIDDEN = "forbidden"
"""The programs' verdict on clients outside the source ranges; their packets are dropped."""

_CONTEXT_BYTES, _IFINDEX_AT = 44, 40
"""``struct __sk_buff`` as far as ``ifindex``."""

_ETHERNET = 14
_OPENS_TCP = bytes([0x50, 0x02])
"""Data offset 5, SYN."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``choose_backend`` decides: the verdict, the frontend that matched, and the backend.

    ``forbidden``: True if it is dropped by source ranges. ``client``: the kind of client, one of
    :data:`~bpfsvc.services.entries.CLIENTS`. ``spilled``: True if the connection overflows.
    """

    verdict: str
    forbidden: bool
    frontend: Frontend
    client: str
    backend: Place
    spilled: bool = False


@dataclass(frozen=True, slots=True)
class PacketResult:
    """The verdict on a packet, and its new addresses if it goes on."""

    verdict: str
    source: bytes = b""
    destination: Place = (b"", 0)


def decide(pinned: Pinned, question: Question, interface: int, port: int = 0) -> Decision:
    """Return the decision alone. Nothing is written or counted, so any node's maps can be used.

    ``port``: the client's; 0: not chosen yet.
    """
    layout = pinned.layout
    record, classes = layout.struct("question"), layout.constants_named("CLIENT_")
    asked: dict[str, Value] = {
        "frontend.address": question.destination,
        "frontend.port": question.port,
        "frontend.protocol": question.protocol,
        "client.address": question.source,
        "client.class": layout.constant("CLIENT_NODE" if question.is_of_node else "CLIENT_UNKNOWN"),
        "client.port": port,
    }
    number, data = _run(pinned, "explain", record.pack(asked), interface)
    verdict = layout.constants_named("VERDICT_").get(number)
    if verdict is None:
        raise KernelError(f"the program explain failed ({number})")
    answer: dict[str, Any] = record.unpack(data)
    return Decision(
        "drop" if verdict == _FORBIDDEN else verdict,
        verdict == _FORBIDDEN,
        Frontend._make(answer[f"frontend.{field}"] for field in Frontend._fields),
        classes[answer["client.class"]],
        (answer["choice.backend.address"], answer["choice.backend.port"]),
        bool(answer["spilled"]),
    )


def send(
    pinned: Pinned, question: Question, interface: int, own: Collection[bytes], port: int
) -> PacketResult:
    """Run the packet through ingress and egress. This writes connections into the maps.

    ``own``: the node's addresses, packed; a packet for them does not leave the node.
    ``port``: the client's.
    """
    frame = _frame(question, port)
    verdict, routed = _run(pinned, "ingress", frame, interface)
    if verdict in _VERDICT_OF:
        return PacketResult(_VERDICT_OF[verdict])
    (source, _), destination = _ends(routed)
    if destination == (question.destination, question.port):
        return PacketResult("none")
    if destination[0] in own:
        return PacketResult("dnat", source, destination)
    verdict, out = _run(pinned, "egress", routed, interface)
    if verdict != _UNSPEC:
        raise KernelError(f"a translated packet is dropped at egress ({verdict})")
    (source, _), destination = _ends(out)
    return PacketResult("dnat", source, destination)


def _run(pinned: Pinned, program: str, data: bytes, interface: int) -> tuple[int, bytes]:
    context = bytearray(_CONTEXT_BYTES)
    struct.pack_into("=I", context, _IFINDEX_AT, interface)
    return syscall.program_test_run(pinned.program(program), data, context=bytes(context))


def _frame(question: Question, port: int) -> bytes:
    """Return an Ethernet frame. Checksums are left empty: the programs only change them."""
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
    """Return source and destination, each with its port."""
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
