"""The tables of schedulers lead every connection to where ip_vs would send it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.base.address import V4_PREFIX, pack
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.hashes import folded, multiplicative_hash
from bpfsvc.services.scheduling.schedulers import (
    BUCKETS,
    MAX_ROUND,
    NO_SLOT,
    Layout,
    Schedule,
    Scheduler,
    lay_out,
    parse_scheduler,
)
from tests.specification import ipvs, ipvs_loads
from tests.specification.ipvs import Destination

NAMES = ("random", "rr", "wrr", "sh", "sh,sh-fallback", "dh", "mh", "mh,mh-fallback")


def places(number: int) -> list[Place]:
    """Return so many places, half of them of IPv6."""
    texts = ("10.{}.{}.{}", "fd00:{}::{}:7:8:{}")
    parts = ((one >> 16, one >> 8 & 255, one & 255) for one in range(number))
    return [(pack(texts[one[2] % 2].format(*one)), 8080) for one in parts]


def destinations(weights: Sequence[int]) -> list[Destination]:
    return [
        Destination(*place, weight)
        for place, weight in zip(places(len(weights)), weights, strict=True)
    ]


def laid_out(text: str, there: Iterable[Destination]) -> Layout:
    return lay_out(parse_scheduler(text), [((one.address, one.port), one.weight) for one in there])


def numbers(layout: Layout) -> list[int]:
    """Return the slot numbers of a table."""
    return memoryview(layout.table).cast("H").tolist()


def positions(layout: Layout, there: Sequence[Destination]) -> list[int | None]:
    """Return which destination each place leads to, as the programs read a table."""
    slots = [position for position, one in enumerate(there) if one.weight > 0]
    if not layout.table:
        return [*slots] or [None]
    return [None if number == NO_SLOT else slots[number] for number in numbers(layout)]


def clients_of_buckets() -> list[bytes]:
    """Return a client for each bucket of ip_vs_sh and ip_vs_dh, in the order of the buckets."""
    found: dict[int, bytes] = {}
    random = Random(1)
    while len(found) < ipvs.BUCKETS:
        address = random.choice((pack("::ffff:0:0")[:12], bytes(12))) + random.randbytes(4)
        found.setdefault(ipvs.sh_hash(address), address)
    return [found[bucket] for bucket in range(ipvs.BUCKETS)]


CLIENTS = clients_of_buckets()

A_WEIGHT = st.one_of(st.integers(0, 1), st.integers(0, 9), st.integers(0, 65535))
SETS = st.lists(A_WEIGHT, min_size=1, max_size=40).map(destinations)
SMALL_SETS = st.lists(st.integers(0, 3), min_size=1, max_size=9).map(destinations)
FEW = settings(max_examples=30, deadline=None, derandomize=True)


# -- Every scheduler ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("random", Schedule.RANDOM),
        ("rr", Schedule.ROUND),
        ("wrr", Schedule.ROUND),
        ("sh", Schedule.SOURCE),
        ("sh,sh-fallback", Schedule.SOURCE),
        ("sh,sh-fallback,sh-port", Schedule.SOURCE_PORT),
        ("dh", Schedule.DESTINATION),
        ("mh,mh-fallback", Schedule.MAGLEV),
        ("mh,mh-port", Schedule.MAGLEV_PORT),
        ("lc", Schedule.LC),
        ("wlc", Schedule.WLC),
        ("sed", Schedule.SED),
        ("nq", Schedule.NQ),
        ("ovf", Schedule.OVF),
        ("twos", Schedule.TWOS),
        ("lblc", Schedule.LBLC),
        ("lblcr", Schedule.LBLCR),
        ("fo", Schedule.RANDOM),
    ],
)
def test_a_scheduler_has_its_kind_of_number(text: str, schedule: Schedule) -> None:
    for weights in ([], [0, 0], [1], [1, 2, 0]):
        assert laid_out(text, destinations(weights)).schedule is schedule


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("weights", [[], [0], [0, 0, 0]])
def test_where_all_are_quiesced_there_is_no_table(text: str, weights: list[int]) -> None:
    assert laid_out(text, destinations(weights)).table == b""


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("weight", [1, 100])
def test_a_single_endpoint_needs_no_table(text: str, weight: int) -> None:
    assert laid_out(text, destinations([weight])).table == b""


@pytest.mark.parametrize("text", [name for name in NAMES if not name.startswith("mh")])
def test_equal_weights_of_1_need_no_table(text: str) -> None:
    assert laid_out(text, destinations([1] * 300)).table == b""


@FEW
@given(SETS, st.sampled_from(NAMES))
def test_a_table_leads_to_all_endpoints_with_a_weight_and_to_no_other(
    there: list[Destination], text: str
) -> None:
    found = set(positions(laid_out(text, there), there)) - {None}
    wanted = {position for position, one in enumerate(there) if one.weight}
    assert found <= wanted
    assert found == wanted or text.startswith("sh")


def test_the_same_endpoints_share_one_table() -> None:
    there = destinations([1, 2, 3])
    for text in ("random", "wrr", "sh", "mh"):
        assert laid_out(text, there).table is laid_out(text, list(there)).table


# -- random, rr, wrr ------------------------------------------------------------------------------


@FEW
@given(st.lists(st.integers(0, 300), min_size=1, max_size=50).map(destinations))
def test_at_random_each_has_as_many_places_as_its_weight(there: list[Destination]) -> None:
    found = Counter(positions(laid_out("random", there), there))
    total = sum(one.weight for one in there)
    places_there = sum(found.values())
    for position, one in enumerate(there):
        assert found[position] * total == one.weight * places_there


@FEW
@given(SETS)
def test_rr_goes_from_endpoint_to_endpoint(there: list[Destination]) -> None:
    layout = laid_out("rr", there)
    turns = list(islice(ipvs.rr(there), 100))
    assert layout.table == b""
    assert list(islice(cycle(positions(layout, there)), len(turns))) == turns


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20).map(destinations))
def test_wrr_is_the_kernels_round_again_and_again(there: list[Destination]) -> None:
    turns = positions(laid_out("wrr", there), there)
    wanted = list(islice(ipvs.wrr(there), 2 * len(turns)))
    assert list(islice(cycle(turns), len(wanted))) == wanted


@pytest.mark.parametrize(
    "weights", [[65535, 32768, 1], [60000] * 3 + [1], [65535, *range(1, 600)], [65535] + [1] * 500]
)
@pytest.mark.parametrize("text", ["random", "wrr"])
def test_a_round_that_would_be_too_long_is_scaled_down(text: str, weights: list[int]) -> None:
    there = destinations(weights)
    found = Counter(positions(laid_out(text, there), there))
    length = sum(found.values())
    assert MAX_ROUND // 2 < length <= MAX_ROUND
    for position, weight in enumerate(weights):
        assert found[position] >= 1
        assert abs(found[position] / length - weight / sum(weights)) < 0.03


@pytest.mark.parametrize("text", ["random", "wrr"])
def test_a_round_that_is_just_not_too_long_stays_as_it_is(text: str) -> None:
    there = destinations([MAX_ROUND - 5, 2, 3])
    assert Counter(positions(laid_out(text, there), there)) == {0: MAX_ROUND - 5, 1: 2, 2: 3}


def test_fo_needs_no_table_for_a_single_endpoint() -> None:
    assert laid_out("fo", destinations([7])).table == b""


@pytest.mark.parametrize("text", ["random", "wrr"])
def test_weights_that_become_equal_when_scaled_down_need_no_table(text: str) -> None:
    assert laid_out(text, destinations([30001, 30000, 30000])).table == b""


@pytest.mark.parametrize("text", ["random", "wrr"])
def test_more_endpoints_than_a_round_has_places_are_equal(text: str) -> None:
    there = destinations([1, 2] * (MAX_ROUND // 2 + 1))
    assert laid_out(text, there).table == b""


# -- sh and dh ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.one_of(SETS, SMALL_SETS), st.booleans())
def test_sh_leads_each_bucket_to_where_ip_vs_does(there: list[Destination], fallback: bool) -> None:
    found = positions(laid_out("sh,sh-fallback" if fallback else "sh", there), there)
    buckets = ipvs.sh_buckets(there)
    wanted = [ipvs.sh(there, buckets, client, fallback=fallback) for client in CLIENTS]
    assert list(islice(cycle(found), BUCKETS)) == wanted


@FEW
@given(st.one_of(SETS, SMALL_SETS))
def test_dh_leads_each_bucket_to_where_ip_vs_does(there: list[Destination]) -> None:
    found = positions(laid_out("dh", there), there)
    assert list(islice(cycle(found), BUCKETS)) == [ipvs.dh(there, one) for one in CLIENTS]


@pytest.mark.parametrize("text", ["sh", "dh"])
def test_clients_of_a_quiesced_endpoint_are_refused(text: str) -> None:
    there = destinations([1, 0, 1, 1])
    found = positions(laid_out(text, there), there)
    assert [bucket for bucket, one in enumerate(found) if one is None] == [*range(1, BUCKETS, 4)]


def test_with_sh_fallback_clients_of_a_quiesced_endpoint_are_served() -> None:
    """Of bucket 2 is bucket 4 tried first, of 131 bucket 6 (then 7 and 8), of 127 bucket 254."""
    there = destinations([1, 0, 0, 1, 1])
    without = positions(laid_out("sh", there), there)
    found = positions(laid_out("sh,sh-fallback", there), there)
    assert None not in found
    assert all(now == kept for now, kept in zip(found, without, strict=True) if kept is not None)
    assert [found[bucket] for bucket in (2, 131, 127)] == [4, 3, 4]


def test_sh_finds_nobody_if_quiesced_endpoints_have_all_buckets() -> None:
    layout = laid_out("sh,sh-fallback", destinations([0] * BUCKETS + [1]))
    assert numbers(layout) == [NO_SLOT] * BUCKETS


# -- mh -------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, derandomize=True)
@given(SETS)
def test_mh_has_the_kernels_table(there: list[Destination]) -> None:
    table = ipvs.mh_table(there)
    found = positions(laid_out("mh", there), there)
    assert list(islice(cycle(found), len(table))) == table


@pytest.mark.parametrize(("endpoints", "index"), [(40, 12), (41, 13), (150, 14), (200, 15)])
def test_mh_has_the_kernels_table_where_it_is_built_larger(endpoints: int, index: int) -> None:
    there = destinations([50 * (one * one % 1000 + 1) for one in range(endpoints)])
    assert positions(laid_out("mh", there), there) == ipvs.mh_table(there, index)


@pytest.mark.parametrize(
    ("endpoints", "length"),
    [(2, 4093), (40, 4093), (41, 8191), (81, 8191), (163, 16381), (655, 65521), (1310, 131071)],
)
def test_mh_shares_evenly(endpoints: int, length: int) -> None:
    found = Counter(numbers(laid_out("mh", destinations([1] * endpoints))))
    assert sum(found.values()) == length
    assert len(found) == endpoints
    assert max(found.values()) * endpoints / length < 1.01


def test_mh_takes_its_largest_table_for_even_more_endpoints() -> None:
    found = Counter(numbers(laid_out("mh", destinations([1] * 2000))))
    assert sum(found.values()) == 131071
    assert max(found.values()) - min(found.values()) <= 1


@pytest.mark.parametrize(("endpoints", "more"), [(2, 0.02), (5, 0.02), (20, 0.02), (40, 0.03)])
@pytest.mark.parametrize("quiesced", [False, True])
def test_mh_moves_few_clients_when_an_endpoint_goes(
    endpoints: int, more: float, quiesced: bool
) -> None:
    """Those of the endpoint, and a few others: more of them with 100 places for each endpoint."""
    there = destinations([1] * endpoints)
    gone = endpoints // 2
    if quiesced:
        left = [one._replace(weight=int(place != gone)) for place, one in enumerate(there)]
    else:
        left = there[:gone] + there[gone + 1 :]
    before = [there[one].address for one in ipvs.mh_table(there) if one is not None]
    slots = positions(laid_out("mh", left), left)
    after = [left[one].address for one in islice(cycle(slots), len(before)) if one is not None]
    assert len(after) == len(before)
    moved = sum(now != old for now, old in zip(after, before, strict=True))
    assert moved / len(before) <= 1 / endpoints + more


def test_mh_needs_no_table_beyond_the_numbers_of_slots() -> None:
    weighted = [((bytes(16), port), 1) for port in range(NO_SLOT)]
    assert lay_out(Scheduler("mh"), weighted).table == b""


# -- The hashes of the specification --------------------------------------------------------------


def test_the_specifications_siphash_is_that_of_python() -> None:
    text = (
        "import sys; print(sys.hash_info.algorithm, *map(hash, (b'abcd', b'12345678', b'0' * 21)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    algorithm, *hashes = ran.stdout.split()
    assert algorithm == "siphash13"
    assert [int(one) % 2**64 for one in hashes] == [
        ipvs.siphash_1_3(message, (0, 0)) for message in (b"abcd", b"12345678", b"0" * 21)
    ]


def test_clients_have_the_buckets_of_the_kernel() -> None:
    """``0x0a000001 * 0x61c88647`` ends in ``27c88647``."""
    assert ipvs.sh_hash(pack("10.0.0.1")) == 0x27
    assert ipvs.sh_hash(pack("10.0.0.0"), port=1) == 0x27
    assert ipvs.dh_hash(pack("a00:1::")) == 0x27
    assert ipvs.dh_hash(pack("a00::1:0:0:0")) == ipvs.dh_hash(pack("a00:0:1::"))


# -- Schedulers by loads, and fo ------------------------------------------------------------------


@FEW
@given(SETS)
def test_fo_always_leads_to_the_highest_weight(there: list[Destination]) -> None:
    layout = laid_out("fo", there)
    assert layout.weights == ()
    found = set(positions(layout, there)) if layout.table else {positions(layout, there)[0]}
    assert found == {ipvs_loads.fo(there)}


@pytest.mark.parametrize("name", ["wlc", "sed", "nq", "ovf", "twos"])
def test_the_weights_of_the_slots_are_compared(name: str) -> None:
    assert laid_out(name, destinations([3, 0, 1])).weights == (3, 1)
    assert laid_out(name, destinations([0, 0])).weights == ()


def test_lc_does_not_look_at_weights() -> None:
    assert laid_out("lc", destinations([3, 0, 7])).weights == (1, 1)
    assert laid_out("lc", destinations([9] * 99 + [1])).table == b""


@pytest.mark.parametrize("name", ["wlc", "sed", "nq", "lblc", "lblcr"])
def test_of_many_endpoints_two_are_drawn_by_their_weights(name: str) -> None:
    assert laid_out(name, destinations([2] * 63 + [1])).table == b""
    weights = [2] * 64 + [1]
    assert Counter(numbers(laid_out(name, destinations(weights)))) == Counter(
        dict(enumerate(weights))
    )


def test_twos_draws_each_endpoint_as_ip_vs_does() -> None:
    """The first has the one number that ip_vs draws beyond the sum of the weights."""
    there = destinations([2, 0, 1, 3])
    table = positions(laid_out("twos", there), there)
    drawn = [table[max(draw - 1, 0)] for draw in range(len(table) + 1)]
    assert drawn == [ipvs_loads.twos_drawn(there, draw) for draw in range(len(table) + 1)]


@given(st.binary(min_size=16, max_size=16))
def test_the_bucket_of_an_address_is_that_of_ip_vs(address: bytes) -> None:
    assert multiplicative_hash(folded(address)) == ipvs.dh_hash(address)


@given(st.binary(min_size=4, max_size=4))
def test_the_bucket_of_an_ipv4_address_is_that_of_ip_vs(address: bytes) -> None:
    assert multiplicative_hash(folded(V4_PREFIX + address)) == ipvs.dh_hash(V4_PREFIX + address)
