"""ip_vs itself: each of its choices is the one that our tables and hashes give.

Run by ``guest.sh`` on Linux 6.1, which has ip_vs. All is in one network namespace: clients are
local addresses, and what ip_vs sends to a destination leaves by an interface that leads nowhere.
What it has chosen stands in its table of connections.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from bpfsvc.base.address import pack
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Layout, Schedule, Scheduler, lay_out
from tests.kernels.ipvs_network import make_network
from tests.specification import ipvs

VIPS = {4: "203.0.113.1", 6: "2001:db8:f::1"}
CLIENTS = {4: "198.51.100.{}", 6: "2001:db8:1::{}"}
DESTINATIONS = {4: "10.9.0.{}", 6: "fd09::{}"}
NUMBERS = range(1, 41)
SAME, DIFFERENT = (1, 1, 1, 1), (3, 1, 4, 2)

_ports = count(5000)


@pytest.fixture(scope="module", autouse=True)
def network() -> None:
    addresses = {
        family: (VIPS[family], *(CLIENTS[family].format(number) for number in NUMBERS))
        for family in VIPS
    }
    make_network("nowhere", addresses, {4: "10.9.0.254/24", 6: "fd09::ffff/64"})


class Virtual:
    """A UDP service of ip_vs; each has a port of its own."""

    def __init__(self, family: int, scheduler: str, flags: Sequence[str], weights: Sequence[int]):
        self.family, self.port = family, next(_ports)
        self._source = count(20000)
        virtual = self._text(VIPS[family])
        flag = ("-b", ",".join(flags)) if flags else ()
        self._run("-A", "-u", virtual, "-s", scheduler, *flag)
        given = [(DESTINATIONS[family].format(at), weight) for at, weight in enumerate(weights, 1)]
        for address, weight in given:
            self._run("-a", "-u", virtual, "-r", self._text(address), "-m", "-w", str(weight))
        # A new destination is put before all others.
        self.destinations: list[tuple[Place, int]] = [
            ((pack(address), self.port), weight) for address, weight in reversed(given)
        ]

    def _text(self, address: str) -> str:
        return f"[{address}]:{self.port}" if self.family == 6 else f"{address}:{self.port}"

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(["ipvsadm", *words], check=True)

    def ask(self, client: str) -> tuple[int, int | None]:
        """Send a datagram; return its source port, and which destination was chosen, if any."""
        kind = socket.AF_INET6 if self.family == 6 else socket.AF_INET
        port = next(self._source)
        with socket.socket(kind, socket.SOCK_DGRAM) as made:
            made.bind((client, port))
            try:
                made.sendto(b"?", (VIPS[self.family], self.port))
            except OSError:  # refused: no destination
                return port, None
        return port, self._chosen(client, port)

    def _chosen(self, client: str, port: int) -> int | None:
        places = [place for place, _ in self.destinations]
        seen = [
            places.index(destination)
            for source, asked, destination in connections()
            if (source, asked[1]) == ((pack(client), port), self.port)
        ]
        return seen[0] if seen else None


def connections() -> Iterator[tuple[Place, Place, Place]]:
    """Yield the client, the service and the destination of each of ip_vs' connections."""
    for line in Path("/proc/net/ip_vs_conn").read_text().splitlines()[1:]:
        _, *ends = line.split()[:7]
        places = [(_address(ends[at]), int(ends[at + 1], 16)) for at in (0, 2, 4)]
        yield places[0], places[1], places[2]


def _address(text: str) -> bytes:
    """Read an address: IPv4 as eight hexadecimal digits, IPv6 as eight groups of four."""
    digits = text.replace(":", "").strip("[]")
    raw = bytes.fromhex(digits)
    return pack(socket.inet_ntoa(raw)) if len(raw) == 4 else raw


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def slot(layout: Layout, number: int, destinations: Sequence[tuple[Place, int]]) -> int | None:
    """Return the destination that a number leads to, as the programs find it."""
    usable = [at for at, (_, weight) in enumerate(destinations) if weight]
    if not layout.table:
        return usable[number % len(usable)]
    table = memoryview(layout.table).cast("H")
    found = table[number % len(table)]
    return None if found == NO_SLOT else usable[found]


def hashed(schedule: Schedule, client: bytes, port: int) -> int:
    """Return the number that a schedule gives to a client."""
    if schedule in (Schedule.SOURCE, Schedule.MAGLEV):
        port = 0
    if schedule in (Schedule.SOURCE, Schedule.SOURCE_PORT):
        return ipvs.sh_hash(client, port)
    return ipvs.mh_hash(client, port)


@pytest.mark.parametrize("weights", [SAME, DIFFERENT, (3, 0, 4, 2)], ids=str)
@pytest.mark.parametrize(
    ("scheduler", "flags"),
    [
        ("sh", ()),
        ("sh", ("sh-port",)),
        ("sh", ("sh-fallback",)),
        ("sh", ("sh-fallback", "sh-port")),
        ("mh", ()),
        ("mh", ("mh-port",)),
    ],
    ids=str,
)
def test_each_client_goes_where_its_hash_leads(
    family: int, scheduler: str, flags: tuple[str, ...], weights: tuple[int, ...]
) -> None:
    virtual = Virtual(family, scheduler, flags, weights)
    layout = lay_out(Scheduler(scheduler, flags), virtual.destinations)
    for number in NUMBERS:
        client = CLIENTS[family].format(number)
        port, chosen = virtual.ask(client)
        expected = hashed(layout.schedule, pack(client), port)
        assert chosen == slot(layout, expected, virtual.destinations), client


def test_all_go_where_the_hash_of_the_address_asked_for_leads(family: int) -> None:
    virtual = Virtual(family, "dh", (), DIFFERENT)
    layout = lay_out(Scheduler("dh"), virtual.destinations)
    expected = slot(layout, ipvs.dh_hash(pack(VIPS[family])), virtual.destinations)
    chosen = {virtual.ask(CLIENTS[family].format(number))[1] for number in NUMBERS}
    assert chosen == {expected}


@pytest.mark.parametrize(
    ("scheduler", "weights"),
    [("rr", SAME), ("rr", (3, 0, 4, 2)), ("wrr", SAME), ("wrr", DIFFERENT), ("wrr", (6, 2, 4, 2))],
    ids=str,
)
def test_turns_are_those_of_the_table_from_some_place_on(
    family: int, scheduler: str, weights: tuple[int, ...]
) -> None:
    """Destinations come one after the other, which leaves wrr somewhere in a round."""
    virtual = Virtual(family, scheduler, (), weights)
    layout = lay_out(Scheduler(scheduler), virtual.destinations)
    client = CLIENTS[family].format(1)
    chosen = [virtual.ask(client)[1] for _ in range(3 * sum(weights))]
    rounds = [slot(layout, number, virtual.destinations) for number in range(5 * sum(weights))]
    assert any(chosen == rounds[at : at + len(chosen)] for at in range(sum(weights)))
