"""Reading a thousand entries at once finds what reading them one by one would find."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import product
from socket import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from typing import NamedTuple

import pytest

from bpfsvc.agent.flows.expiry import Expiry, PairCounts
from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.layout import Layout, MapLayout, Record

INGRESS, EGRESS = 1, 2
ALONE, TIME_WAIT, LINGER, UNANSWERED = 15, 60, 2, 5

KEEP = Lifetimes(
    tcp_established=86400, tcp_half_closed=3600, tcp_closed=10, udp=120, sctp=210, half_open=60
)

FLAGS = ("reply", "established", "fin_sent", "fin_received", "held", "client_first")

KEY = Record((("number", "I"), ("protocol", "B"), ("hook", "B"), ("zero", "H")))
VALUE = Record(
    (
        *(("created", "Q"), ("seen", "Q")),
        *((flag, "B") for flag in FLAGS),
        *(("reset", "B"), ("outside", "B")),
    )
)
LAYOUT = Layout(
    "test",
    {"connections": MapLayout("hash", KEY, VALUE, max_entries=8, flags=0)},
    {
        **{"OUTSIDE_UNTRANSLATED": 2, "HOOK_EGRESS": EGRESS, "TIME_WAIT_SECONDS": TIME_WAIT},
        **{"LINGER_SECONDS": LINGER, "UNANSWERED_SECONDS": UNANSWERED},
    },
)


class Entry(NamedTuple):
    protocol: int
    hook: int
    reply: int
    established: int
    fin_sent: int
    fin_received: int
    reset: int
    client_first: int
    idle: float = 0.0
    held: int = 0
    outside: int = 0

    def seconds(self, keep: Lifetimes, *, crowded: bool, early_ports: bool) -> float:
        """Return how long such an entry is kept."""
        ended = self.fin_sent and self.fin_received
        remembered = ended and not self.reset and not self.client_first
        around_wire = (self.hook == EGRESS) != bool(self.reply)
        if ended or self.reset:
            seconds = LINGER if crowded else keep.tcp_closed
            if remembered and around_wire and not crowded and not early_ports:
                seconds = max(seconds, TIME_WAIT)
        elif not self.established:
            seconds = UNANSWERED if crowded else keep.half_open
            if self.protocol == IPPROTO_UDP:
                seconds = min(seconds, keep.udp)
        elif self.protocol == IPPROTO_UDP:
            seconds = keep.udp
        elif self.protocol != IPPROTO_TCP:
            seconds = keep.sctp
        elif self.fin_sent or self.fin_received:
            seconds = keep.tcp_half_closed
        else:
            seconds = keep.tcp_established
        return seconds + ALONE * self.reply


def kinds() -> Iterator[Entry]:
    """Yield an entry of each state."""
    bits = (0, 1)
    protocols = (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP)
    for state in product(protocols, (INGRESS, EGRESS), bits, bits, bits, bits, (0, 1, 2), bits):
        yield Entry(*state)


def block(entries: list[Entry], now: int) -> Block:
    keys = [
        KEY.pack({"number": n, "protocol": e.protocol, "hook": e.hook})
        for n, e in enumerate(entries)
    ]
    values = []
    for entry in entries:
        fields = {flag: getattr(entry, flag) for flag in (*FLAGS, "reset", "outside")}
        values.append(VALUE.pack({**fields, "seen": now - int(entry.idle * NS_PER_SECOND)}))
    return Block(len(entries), b"".join(keys), b"".join(values))


def numbers(keys: list[bytes]) -> list[int]:
    return sorted(int(KEY.unpack(key)["number"]) for key in keys)


NOW = 500_000 * NS_PER_SECOND
"""Six days after the machine was started."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW)


@pytest.mark.parametrize(("crowded", "early_ports"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "keep",
    [KEEP, Lifetimes(tcp_established=5 * 86400, tcp_closed=90), Lifetimes(udp=1)],
    ids=["usual", "long", "short UDP"],
)
def test_an_entry_of_any_state_is_over_after_its_time(
    keep: Lifetimes, crowded: bool, early_ports: bool
) -> None:
    """Not a moment before, though times are compared in units of seconds at first."""
    flags = {"crowded": crowded, "early_ports": early_ports}
    entries = []
    for entry in kinds():
        limit = entry.seconds(keep, **flags)
        entries += [entry._replace(idle=idle) for idle in (0.0, limit - 0.001, limit, limit + 7.0)]
    judged = Expiry(LAYOUT, keep).begin(**flags).of_block(block(entries, NOW))
    assert numbers(judged.keys) == [n for n in range(len(entries)) if n % 4 >= 2]


def test_any_age_of_any_entry_is_judged_as_it_is() -> None:
    """Up to two days and more than the longest lifetime."""
    chance = random.Random(1)
    states = list(kinds())
    entries = [
        chance.choice(states)._replace(
            idle=chance.choice((1, 100, 10_000, 250_000)) * chance.random()
        )
        for _ in range(20_000)
    ]
    judged = (
        Expiry(LAYOUT, KEEP).begin(crowded=False, early_ports=False).of_block(block(entries, NOW))
    )
    assert numbers(judged.keys) == [
        n
        for n, entry in enumerate(entries)
        if entry.idle >= entry.seconds(KEEP, crowded=False, early_ports=False)
    ]


def test_an_entry_that_a_packet_renews_during_the_sweep_is_not_over() -> None:
    entries = [entry._replace(idle=-idle) for entry in kinds() for idle in (0.001, 5.0, 2000.0)]
    judged = (
        Expiry(LAYOUT, KEEP).begin(crowded=True, early_ports=True).of_block(block(entries, NOW))
    )
    assert not judged.keys


def test_nothing_is_over_before_the_machine_is_up_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: NS_PER_SECOND)
    entries = [entry._replace(idle=1.0) for entry in kinds()]
    made = block(entries, NS_PER_SECOND)
    assert not Expiry(LAYOUT, KEEP).begin(crowded=True, early_ports=True).of_block(made).keys


def test_half_open_and_untranslated_pairs_are_counted_by_their_requests() -> None:
    state = Entry(IPPROTO_TCP, INGRESS, *(0,) * 6)
    entries = [
        state._replace(held=held, outside=outside, reply=reply)
        for held, outside, reply in product((0, 1), (0, 1, 2), (0, 1))
    ]
    sweep = Expiry(LAYOUT, KEEP).begin(crowded=False, early_ports=False)
    judged = sweep.of_block(block(entries, NOW))
    assert (judged.pairs, judged.pairs_over) == (PairCounts(3, 2), PairCounts(0, 0))
    entries += [entry._replace(idle=KEEP.half_open) for entry in entries]
    judged = sweep.of_block(block(entries, NOW))
    assert (judged.pairs, judged.pairs_over) == (PairCounts(6, 4), PairCounts(3, 2))


def test_the_shortest_time_is_that_of_the_entries_there_are() -> None:
    """Closed connections are left out: few of them are found by reading."""
    open_tcp = Entry(IPPROTO_TCP, INGRESS, 0, 1, 0, 0, 0, 0)
    sweep = Expiry(LAYOUT, KEEP).begin(crowded=False, early_ports=False)
    assert sweep.shortest_seconds == float("inf")
    for added, seconds in (
        (open_tcp._replace(fin_sent=1, fin_received=1), float("inf")),
        (open_tcp, KEEP.tcp_established),
        (open_tcp._replace(protocol=IPPROTO_UDP), KEEP.udp),
        (open_tcp._replace(established=0), KEEP.half_open),
        (open_tcp, KEEP.half_open),
    ):
        sweep.of_block(block([added], NOW))
        assert sweep.shortest_seconds == seconds
