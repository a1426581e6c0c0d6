"""What happens in a history. Events are plain data: a part of a history is a history, too.

Each names its ends by numbers of the world and carries its own random number, so that it does the
same wherever it stands. What depends on earlier events (a sequence number inside of a window, the
backend that answers) is named by its kind, and becomes a number when the event is played.
"""

from __future__ import annotations

from enum import IntEnum
from random import Random
from typing import NamedTuple

from tests.fuzz.frames import ACK, FIN, PSH, RST, SYN, URG
from tests.fuzz.world import CLIENTS, SERVICES, SOURCE_PORTS


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

    ``forged``: it acknowledges what was never sent. ``damage``: the error of its checksum.
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


class Pause(NamedTuple):
    """Time passes."""

    ns: int


class Collect(NamedTuple):
    """The connection GC runs."""


class Write(NamedTuple):
    """The control plane gives a Service other endpoints, or removes it, or adds it again."""

    service: int
    number: int


Event = Packet | Pause | Collect | Write

_USUAL = [SYN, SYN | ACK, ACK, PSH | ACK, FIN | ACK, RST, RST | ACK]
_PAUSES = (
    *(1_000_000, 50_000_000, 700_000_000, 1_500_000_000, 3_000_000_000, 9_000_000_000),
    *(11_000_000_000, 40_000_000_000, 65_000_000_000, 125_000_000_000, 3_700_000_000_000),
)
_PAUSE_WEIGHTS = (20, 20, 20, 10, 10, 5, 5, 3, 2, 1, 0.3)


class Generator:
    """Draws events. Flows are drawn in a small set, which changes slowly: they make progress."""

    def __init__(self, seed: int, targets: dict[int, int]) -> None:
        self._random = Random(seed)
        self._targets = targets
        self._flows = [self._flow() for _ in range(6)]

    def event(self) -> Event:
        """Return the next event."""
        random = self._random
        kind = random.random()
        if kind < 0.93:
            return self._packet()
        if kind < 0.97:
            return Pause(random.choices(_PAUSES, _PAUSE_WEIGHTS)[0])
        if kind < 0.99:
            return Collect()
        return Write(random.randrange(SERVICES), random.getrandbits(32))

    def _flow(self) -> tuple[int, int, int, int, int]:
        random = self._random
        family = random.choice([4, 6])
        client = random.randrange(len(CLIENTS[family]))
        port = random.randrange(len(SOURCE_PORTS))
        # Most flows live a quiet life: without it nothing would be established.
        return family, random.randrange(self._targets[family]), client, port, random.randrange(3)

    def _packet(self) -> Packet:
        random = self._random
        index = random.randrange(len(self._flows))
        if random.random() < 0.03:
            self._flows[index] = self._flow()
        family, target, client, port, manner = self._flows[index]
        sender = int(random.random() < 0.45)
        if manner or random.random() < 0.3:
            flags = random.choices(_USUAL, (3, 4, 6, 6, 1.5, 0.4, 0.2))[0]
            if not sender and flags == SYN | ACK:
                flags = ACK
        else:
            flags = random.choice([*_USUAL, FIN, 0, FIN | RST | ACK, URG | PSH, URG | ACK])
        if sender and flags == SYN:
            # Left out: a backend that connects to its client from the port that it serves.
            flags = SYN | ACK
        usual = random.random() < 0.8
        return Packet(
            family,
            target,
            client,
            port,
            sender,
            flags,
            Sequence.NEXT if usual else random.choice(list(Sequence)),
            not usual and random.random() < 0.2,
            0 if flags & (SYN | RST) else random.choice([0, 0, 1, 7, 64, 1000]),
            0 if random.random() < 0.9 else random.randrange(1, 0xFFFF),
            random.random() < 0.2,
            random.getrandbits(32),
        )
