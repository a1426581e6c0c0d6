"""IPVS' schedulers that compare numbers of connections, as the Linux kernel has them.

Written as :mod:`tests.specification.ipvs` is. The numbers are in ``include/net/ip_vs.h``, the rules
in ``ip_vs_lc.c`` and its relatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.specification.ipvs import Destination


class Conns(NamedTuple):
    """The connections of a destination at one moment (``activeconns``, ``inactconns``)."""

    active: int = 0
    inactive: int = 0

    @property
    def overhead(self) -> int:
        """What an active connection costs is 256 times an inactive one (conn_overhead)."""
        return self.active * 256 + self.inactive


def lc(destinations: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
    """Return the destination with the least overhead; weights only say who is quiesced."""
    least: int | None = None
    for position, one in enumerate(destinations):
        if one.weight == 0:
            continue
        if least is None or conns[position].overhead < conns[least].overhead:
            least = position
    return least


def wlc(destinations: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
    """Return the destination with the least overhead for its weight.

    The search begins after the first one that has a weight. Of those after it, a destination
    of weight 0 is never less: its product is 0.
    """
    begin = next((at for at, one in enumerate(destinations) if one.weight > 0), None)
    if begin is None:
        return None
    least = begin
    for position in range(begin + 1, len(destinations)):
        ours = conns[least].overhead * destinations[position].weight
        if ours > conns[position].overhead * destinations[least].weight:
            least = position
    return least


def sed(destinations: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
    """Return the destination where one more active connection waits least."""
    begin = next((at for at, one in enumerate(destinations) if one.weight > 0), None)
    if begin is None:
        return None
    least = begin
    for position in range(begin + 1, len(destinations)):
        ours = (conns[least].active + 1) * destinations[position].weight
        if ours > (conns[position].active + 1) * destinations[least].weight:
            least = position
    return least


def nq(destinations: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
    """Return the first destination without an active connection, or else that of ``sed``."""
    usable = (at for at, one in enumerate(destinations) if one.weight > 0)
    idle = next((at for at in usable if conns[at].active == 0), None)
    return sed(destinations, conns) if idle is None else idle


def ovf(destinations: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
    """Return the destination of the highest weight that has not more active connections than it."""
    highest: int | None = None
    for position, one in enumerate(destinations):
        if one.weight == 0 or conns[position].active > one.weight:
            continue
        if highest is None or one.weight > destinations[highest].weight:
            highest = position
    return highest


Rule = Callable[[Sequence[Destination], Sequence[Conns]], int | None]

RULES: dict[str, Rule] = {"lc": lc, "wlc": wlc, "sed": sed, "nq": nq, "ovf": ovf}
"""By name: the schedulers that need to know nothing else."""


def fo(destinations: Sequence[Destination]) -> int | None:
    """Return the destination of the highest weight."""
    highest: int | None = None
    for position, one in enumerate(destinations):
        if one.weight > (0 if highest is None else destinations[highest].weight):
            highest = position
    return highest


def twos(
    destinations: Sequence[Destination], conns: Sequence[Conns], draws: tuple[int, int]
) -> int | None:
    """Return the one of two drawn destinations that has less overhead for its weight.

    ``draws`` are numbers from 0 to the sum of the weights, both included.
    """
    first, second = (twos_drawn(destinations, draw) for draw in draws)
    if first is None or second is None:
        return None
    ours = destinations[second].weight * conns[first].overhead
    return second if ours > destinations[first].weight * conns[second].overhead else first


def twos_drawn(destinations: Sequence[Destination], draw: int) -> int | None:
    """Return the destination that a number stands for: weights are taken off until none is left."""
    for position, one in enumerate(destinations):
        draw -= one.weight
        if one.weight > 0 and draw <= 0:
            return position
    return None


# -- ip_vs_lblc.c and ip_vs_lblcr.c ---------------------------------------------------------------


def overloaded(destinations: Sequence[Destination], conns: Sequence[Conns], position: int) -> bool:
    """True if a destination has too many connections and another one is nearly idle."""
    if conns[position].active <= destinations[position].weight:
        return False
    return any(2 * conns[at].active < destinations[at].weight for at, _ in enumerate(destinations))


class Lblc:
    """The destination that each address had last.

    Destinations may change between two questions, so they are remembered by address and port.
    """

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[bytes, int]] = {}

    def __call__(
        self, destinations: Sequence[Destination], conns: Sequence[Conns], asked: bytes
    ) -> int | None:
        """Return the destination for one more connection to an address."""
        for position, one in enumerate(destinations):
            is_last = one[:2] == self.last.get(asked) and one.weight > 0
            if is_last and not overloaded(destinations, conns, position):
                return position
        chosen = wlc(destinations, conns)
        if chosen is not None:
            self.last[asked] = destinations[chosen][:2]
        return chosen


class ServerSet:
    """The destinations of one address, the one that joined last before all others."""

    def __init__(self, changed: float) -> None:
        self.members: list[tuple[bytes, int]] = []
        self.changed = changed

    def insert(self, place: tuple[bytes, int], now: float) -> None:
        """Have a destination join (ip_vs_dest_set_insert)."""
        if place not in self.members:
            self.members.insert(0, place)
            self.changed = now

    def positions(self, destinations: Sequence[Destination]) -> list[int]:
        """Return where members stand that have a weight, in the order of the set."""
        places = [one[:2] for one in destinations]
        found = (places.index(one) for one in self.members if one in places)
        return [position for position in found if destinations[position].weight > 0]


class Lblcr:
    """A set of destinations for each address.

    Without a change for ``expiration`` seconds, a set of several loses the most loaded one.
    """

    def __init__(self, expiration: float = 24 * 3600) -> None:
        self.sets: dict[bytes, ServerSet] = {}
        self.expiration = expiration

    def __call__(
        self,
        destinations: Sequence[Destination],
        conns: Sequence[Conns],
        asked: bytes,
        now: float = 0,
    ) -> int | None:
        """Return the destination for one more connection to an address."""
        kept = self.sets.get(asked)
        least = None
        if kept:
            members = kept.positions(destinations)
            least = extreme(destinations, conns, members, most=False)
            if len(kept.members) > 1 and now > kept.changed + self.expiration:
                most = extreme(destinations, conns, members, most=True)
                if most is not None:
                    kept.members.remove(destinations[most][:2])
                    kept.changed = now
            if least is not None and not overloaded(destinations, conns, least):
                return least
        chosen = wlc(destinations, conns)
        if chosen is not None:
            self.sets.setdefault(asked, ServerSet(now)).insert(destinations[chosen][:2], now)
        return chosen


def extreme(
    destinations: Sequence[Destination],
    conns: Sequence[Conns],
    members: Sequence[int],
    *,
    most: bool,
) -> int | None:
    """Return the least or the most loaded member for its weight; of equal ones the first."""
    best: int | None = None
    for position in members:
        if best is None:
            best = position
            continue
        ours = conns[best].overhead * destinations[position].weight
        other = conns[position].overhead * destinations[best].weight
        if (ours < other) if most else (ours > other):
            best = position
    return best
