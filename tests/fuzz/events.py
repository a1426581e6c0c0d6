"""What happens in a history. Events are plain data: a part of a history is a history, too.

Each names its ends by numbers of the world and carries its own random number, so that it does the
same wherever it stands. What depends on earlier events (a sequence number inside of a window, the
backend that answers) is named by its kind, and becomes a number when the event is played.
"""

from __future__ import annotations

from enum import IntEnum
from random import Random
from typing import NamedTuple

from tests.fuzz.frames import (
    ACK,
    FIN,
    PSH,
    RST,
    SCTP_ABORT,
    SCTP_DATA,
    SCTP_INIT,
    SCTP_INIT_ACK,
    SYN,
    URG,
)
from tests.fuzz.network import ALL_PATHS
from tests.fuzz.unrelated import UNRELATED_KINDS
from tests.fuzz.world import CLIENTS, SERVICES, SOURCE_PORTS, Target


class Sequence(IntEnum):
    """Which sequence number a segment has."""

    NEXT = 0
    """The next one of its sender."""
    EXPECTED = 1
    """The one that its receiver has acknowledged."""
    IN_WINDOW = 2
    FAR = 3
    OLD = 4


class Packet(NamedTuple):
    """A packet of one side of the flow of a client from a port to a target.

    * ``flags``: of TCP; of SCTP the type of its chunk.
    * ``forged``: it acknowledges what was never sent. ``damage``: the error of its checksum.
    * ``extension``: the number of an IPv4 option or of extension headers; 0: none.
    * ``cut``: bytes of each fragment; 0: it is whole. ``number`` gives their order.
    * ``kept``: bytes of the frame that are sent; 0: all.
    """

    family: int
    target: int
    client: int
    port: int
    sender: int
    flags: int
    sequence: int
    forged: bool
    length: int
    damage: int
    unsummed: bool
    number: int
    extension: int = 0
    cut: int = 0
    kept: int = 0


class IcmpError(NamedTuple):
    """An error about a packet of the flow of a client from a port to a target.

    * ``about``: about a packet of the client (0) or of the server (1), as it has left the node.
    * ``by_receiver``: the packet's receiver sends it, and not a router.
    * ``kind``: as in ``frames.ICMP_ERRORS``. ``length``: bytes quoted behind the IP header.
    """

    family: int
    target: int
    client: int
    port: int
    about: int
    by_receiver: bool
    kind: int
    length: int


class Foreign(NamedTuple):
    """A connection of netfilter leaves, by the port that a flow is masqueraded to."""

    family: int
    target: int
    client: int
    port: int


class Unrelated(NamedTuple):
    """A frame that has nothing to do with Services. ``number`` says what is in it."""

    kind: int
    number: int


class Pause(NamedTuple):
    """Time passes."""

    ns: int


class Collect(NamedTuple):
    """The connection GC runs. ``crowded``: as if the table were nearly full."""

    crowded: bool = False


class Write(NamedTuple):
    """The control plane gives a Service other endpoints, or removes it, or adds it again."""

    service: int
    number: int


class Reconfigure(NamedTuple):
    """The agent changes what may send packets on. ``paths``: a number in ``ALL_PATHS``."""

    paths: int


class Upgrade(NamedTuple):
    """The next step of an upgrade. ``number``: where the new programs are attached first."""

    number: int


Event = Packet | IcmpError | Foreign | Unrelated | Pause | Collect | Write | Reconfigure | Upgrade

EXTENSIONS = {
    4: (b"", b"\x01\x01\x01\x00", b"\x94\x04\x00\x00" + b"\x01" * 8),
    6: (
        b"",
        # Hop by hop, for the destination, routing that is done, an atomic fragment.
        b"\x00\x00\x01\x04" + bytes(4),
        b"\x3c\x01\x01\x0c" + bytes(12),
        b"\x2b\x00\x00\x00" + bytes(4),
        b"\x2c\x00\x00\x00\x12\x34\x56\x78",
    ),
}
"""Options of IPv4; extension headers of IPv6, each with its own type in its first byte."""

_CHUNKS = [SCTP_INIT, SCTP_INIT_ACK, SCTP_DATA, SCTP_ABORT]
_USUAL = [SYN, SYN | ACK, ACK, PSH | ACK, FIN | ACK, RST, RST | ACK]
_ALL_FLAGS = FIN | SYN | RST | PSH | ACK | URG
_UNUSUAL = [
    *(0, FIN, URG | PSH, URG | ACK, FIN | RST | ACK, SYN | URG, _ALL_FLAGS),
    *(SYN | FIN, SYN | RST, SYN | FIN | RST),
]
_PAUSES = (
    *(1_000_000, 50_000_000, 700_000_000, 1_500_000_000, 3_000_000_000, 9_000_000_000),
    *(11_000_000_000, 40_000_000_000, 65_000_000_000, 125_000_000_000, 3_700_000_000_000),
)
_PAUSE_WEIGHTS = (20, 20, 20, 10, 10, 5, 5, 3, 2, 1, 0.3)


class Generator:
    """Draws events. Flows are drawn in a small set, which changes slowly: they make progress."""

    def __init__(self, seed: int, targets: dict[int, list[Target]]) -> None:
        self._random = Random(seed)
        self._targets = targets
        self._flows = [self._flow() for _ in range(6)]

    def event(self) -> Event:
        """Return the next event."""
        random = self._random
        draw = random.random()
        if draw < 0.88:
            return self._packet()
        if draw < 0.89:
            return Unrelated(random.randrange(UNRELATED_KINDS), random.getrandbits(32))
        if draw < 0.90:
            return Foreign(*random.choice(self._flows)[:4])
        if draw < 0.93:
            family, target, client, port, _ = random.choice(self._flows)
            about, by_receiver = random.randrange(2), random.random() < 0.5
            kind, length = random.randrange(4), random.choice([8, 12, 28])
            return IcmpError(family, target, client, port, about, by_receiver, kind, length)
        if draw < 0.97:
            return Pause(random.choices(_PAUSES, _PAUSE_WEIGHTS)[0])
        if draw < 0.988:
            return Collect(random.random() < 0.2)
        if draw < 0.989:
            return Reconfigure(random.randrange(len(ALL_PATHS)))
        if draw < 0.992:
            return Upgrade(random.getrandbits(32))
        return Write(random.randrange(SERVICES), random.getrandbits(32))

    def _flow(self) -> tuple[int, int, int, int, int]:
        random = self._random
        family = random.choice([4, 6])
        client = random.randrange(len(CLIENTS[family]))
        port = random.randrange(len(SOURCE_PORTS))
        # Most flows live a quiet life: without it nothing would be established.
        return (
            family,
            random.randrange(len(self._targets[family])),
            client,
            port,
            random.randrange(3),
        )

    def _flags(self, protocol: str, sender: int, quiet: bool) -> int:
        random = self._random
        if protocol == "SCTP":
            return random.choices(_CHUNKS, (1, 3, 6, 0.3) if sender else (3, 0.2, 6, 0.3))[0]
        if protocol == "UDP":
            return 0
        if quiet or random.random() < 0.3:
            flags = random.choices(_USUAL, (3, 4, 6, 6, 1.5, 0.4, 0.2))[0]
            if not sender and flags == SYN | ACK:
                flags = ACK
        else:
            flags = random.choice([*_USUAL, *_UNUSUAL])
        # A backend seldom connects to its client from the port that it serves.
        if sender and flags == SYN and random.random() < 0.8:
            flags = SYN | ACK
        return flags

    def _packet(self) -> Packet:
        random = self._random
        index = random.randrange(len(self._flows))
        if random.random() < 0.05:
            self._flows[index] = self._flow()
        family, target, client, port, manner = self._flows[index]
        protocol = self._targets[family][target].protocol
        sender = int(random.random() < 0.45)
        flags = self._flags(protocol, sender, bool(manner))
        usual = random.random() < 0.8
        opens = protocol == "TCP" and flags & (SYN | RST)
        extension = 0
        if random.random() < 0.05:
            extension = random.randrange(len(EXTENSIONS[family]))
        # (The checksum of SCTP takes long in Python.)
        longest = 64 if protocol == "SCTP" else 1000
        length = 0 if opens else random.choice([0, 0, 1, 7, 64, longest])
        return Packet(
            *(family, target, client, port, sender, flags),
            Sequence.NEXT if usual else random.choice(list(Sequence)),
            not usual and random.random() < 0.2,
            length,
            0 if random.random() < 0.9 else random.randrange(1, 0xFFFF),
            random.random() < 0.2,
            random.getrandbits(32),
            extension,
            random.choice([24, 256, 512]) if length > 7 and random.random() < 0.1 else 0,
            random.randrange(15, 80) if not sender and random.random() < 0.01 else 0,
        )
