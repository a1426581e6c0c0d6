"""ip_vs itself, where it compares connections: each of its choices is the model's.

The model is tests/specification/ipvs_loads.py, by which the packet tests judge our programs. Run by
``guest.sh`` on Linux 6.1, as ``ipvs_choices.py`` is. Connections are segments from raw sockets of
local addresses; ip_vs says itself how many each destination has.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from bpfsvc.base.address import pack
from tests.kernels.ipvs_network import make_network
from tests.specification import ipvs_loads
from tests.specification.ipvs import Destination
from tests.specification.ipvs_loads import Conns, Rule

VIPS = {4: "203.0.113.2", 6: "2001:db8:f::2"}
CLIENT = {4: "198.51.101.1", 6: "2001:db8:2::1"}
DESTINATIONS = {4: "10.8.0.{}", 6: "fd08::{}"}
SYN, ACK, FIN = 2, 16, 1
EXPIRATION = Path("/proc/sys/net/ipv4/vs/lblcr_expiration")

RULES: dict[str, Rule] = {
    **ipvs_loads.RULES,
    "fo": lambda there, _conns: ipvs_loads.fo(there),
}

WEIGHTS = [(1, 1, 1, 1), (3, 1, 4, 2), (3, 0, 4, 2), (2, 7, 1, 7)]

_ports = count(6000)


@pytest.fixture(scope="module", autouse=True)
def network() -> None:
    addresses = {family: (VIPS[family], CLIENT[family]) for family in VIPS}
    make_network("beyond", addresses, {4: "10.8.0.254/24", 6: "fd08::ffff/64"})


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Virtual:
    """A TCP service of ip_vs; each has a port of its own."""

    def __init__(self, family: int, scheduler: str, weights: Sequence[int]) -> None:
        self.family, self.port = family, next(_ports)
        self._client = count(20000)
        self._virtual = self._text(VIPS[family])
        run("-A", "-t", self._virtual, "-s", scheduler)
        self._addresses = [DESTINATIONS[family].format(at) for at in range(1, len(weights) + 1)]
        for address, weight in zip(self._addresses, weights, strict=True):
            self._set("-a", address, weight)
        kind = socket.AF_INET6 if family == 6 else socket.AF_INET
        self._socket = socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self._socket.bind((CLIENT[family], 0))

    def weigh(self, weights: Sequence[int]) -> None:
        """Set the weights of all destinations."""
        for address, weight in zip(self._addresses, weights, strict=True):
            self._set("-e", address, weight)

    def _set(self, how: str, address: str, weight: int) -> None:
        run(how, "-t", self._virtual, "-r", self._text(address), "-m", "-w", str(weight))

    def _text(self, address: str) -> str:
        return f"[{address}]:{self.port}" if self.family == 6 else f"{address}:{self.port}"

    def open(self) -> int:
        """Open a connection, if ip_vs has a destination for it; return the client's port."""
        port = next(self._client)
        self.send(port, SYN)
        self.send(port, ACK)
        return port

    def send(self, port: int, flags: int) -> None:
        """Send a segment of a client; one that is refused is an error of the socket."""
        segment = struct.pack("!HHIIBBHHH", port, self.port, 1, 1, 5 << 4, flags, 1024, 0, 0)
        try:
            self._socket.sendto(segment, (VIPS[self.family], 0))
        except OSError:
            return

    def close(self) -> None:
        """Remove the service."""
        self._socket.close()
        run("-D", "-t", self._virtual)

    def state(self) -> State:
        """Return destinations and their connections, in the order in which ip_vs has them."""
        found = State([], [])
        mine = False
        for line in Path("/proc/net/ip_vs").read_text().splitlines()[3:]:
            words = line.split()
            if words[0] == "->":
                if mine:
                    place, _, weight, active, inactive = words[1:]
                    found.there.append(Destination(*_place(place), int(weight)))
                    found.conns.append(Conns(int(active), int(inactive)))
            else:
                mine = _place(words[1]) == (pack(VIPS[self.family]), self.port)
        return found


class State(NamedTuple):
    """What ip_vs has at a moment."""

    there: list[Destination]
    conns: list[Conns]


def run(*words: str) -> None:
    """Run ipvsadm."""
    status = os.spawnvp(os.P_WAIT, "ipvsadm", ["ipvsadm", *words])
    assert status == 0, words


def _place(text: str) -> tuple[bytes, int]:
    """Read an address and a port: hexadecimal digits, of IPv6 eight groups in brackets."""
    match = re.fullmatch(r"\[?([0-9A-Fa-f:]+?)\]?:([0-9A-Fa-f]{4})", text)
    assert match, text
    raw = bytes.fromhex(match[1].replace(":", ""))
    address = pack(socket.inet_ntoa(raw)) if len(raw) == 4 else raw
    return address, int(match[2], 16)


@pytest.fixture
def virtual(family: int) -> Iterator[Callable[[str, Sequence[int]], Virtual]]:
    """Make services, which are removed at the end."""
    made: list[Virtual] = []

    def make(scheduler: str, weights: Sequence[int]) -> Virtual:
        made.append(Virtual(family, scheduler, weights))
        return made[-1]

    yield make
    for one in made:
        one.close()


def follow(virtual: Virtual, rule: Rule, opened: int, alive: int, random: Random) -> set[int]:
    """Open and close connections; every choice is the rule's. Return what was chosen."""
    active: list[int] = []
    chosen: set[int] = set()
    while opened:
        if len(active) < alive and random.random() < 0.6:
            opened -= 1
            before = virtual.state()
            port = virtual.open()
            after = virtual.state()
            more = [
                at
                for at, (now, then) in enumerate(zip(after.conns, before.conns, strict=True))
                if now.active > then.active
            ]
            expected = rule(before.there, before.conns)
            assert more == ([] if expected is None else [expected]), before
            if expected is not None:
                active.append(port)
                chosen.add(expected)
        elif active:
            virtual.send(active.pop(random.randrange(len(active))), FIN)
    return chosen


Make = Callable[[str, Sequence[int]], Virtual]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("scheduler", RULES)
def test_each_connection_goes_where_the_model_sends_it(
    virtual: Make, scheduler: str, weights: Sequence[int]
) -> None:
    follow(virtual(scheduler, weights), RULES[scheduler], 40, 14, Random(scheduler))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_lblc_stays_and_moves_when_the_model_does(
    virtual: Make, family: int, weights: Sequence[int]
) -> None:
    """Destinations are quiesced and come back meanwhile."""
    model, vip = ipvs_loads.Lblc(), pack(VIPS[family])
    service = virtual("lblc", weights)

    def rule(there: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
        return model(there, conns, vip)

    chosen: set[int] = set()
    for number in range(4):
        chosen |= follow(service, rule, 15, 14, Random(number))
        service.weigh([weight * (place != number) for place, weight in enumerate(weights)])
    assert len(chosen) > 1


@pytest.mark.parametrize("weights", WEIGHTS[:2], ids=str)
def test_the_set_of_lblcr_grows_and_shrinks_as_the_models_does(
    virtual: Make, family: int, weights: Sequence[int]
) -> None:
    """A set that has not changed for 20 s loses a member; between waits are fewer seconds."""
    EXPIRATION.write_text("20")
    model, vip = ipvs_loads.Lblcr(expiration=20), pack(VIPS[family])
    service = virtual("lblcr", weights)

    def rule(there: Sequence[Destination], conns: Sequence[Conns]) -> int | None:
        return model(there, conns, vip, time.monotonic())

    chosen: set[int] = set()
    sizes = []
    for number in range(3):
        chosen |= follow(service, rule, 15, 14, Random(number))
        sizes.append(len(model.sets[vip].members))
        time.sleep(23)
    assert len(chosen) > 1
    assert max(sizes) > 1
