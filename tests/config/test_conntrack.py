"""Which sysctls of netfilter are wanted, for a number of processors."""

from __future__ import annotations

import pytest

from bpfsvc.config.config import Conntrack
from tests.config.settings import conntrack

LIMITS = {
    "so many for each processor": (conntrack(), 8, 262144),
    "at least the least": (conntrack(), 1, 131072),
    "no more than a million on account of processors": (conntrack(), 64, 1048576),
    "a million exactly": (conntrack(), 32, 1048576),
    "none for each processor leaves it": (conntrack(max_per_core=0), 64, 0),
    "the least may be above a million": (conntrack(min=1 << 21), 8, 1 << 21),
    "no least": (conntrack(min=0, max_per_core=10), 2, 20),
}


@pytest.mark.parametrize(("wanted", "cores", "expected"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_follows_the_number_of_processors(
    wanted: Conntrack, cores: int, expected: int
) -> None:
    assert wanted.limit(cores) == expected
    assert wanted.values(cores).get("nf_conntrack_max", 0) == expected


def test_values_of_zero_are_not_set() -> None:
    assert conntrack(max_per_core=0, tcp_established=0, tcp_close_wait=0).values(4) == {}


def test_all_given_values_are_set() -> None:
    wanted = conntrack(tcp_be_liberal=True, udp=5, udp_stream=6)
    assert wanted.values(8) == {
        "nf_conntrack_max": 262144,
        "nf_conntrack_tcp_timeout_established": 86400,
        "nf_conntrack_tcp_timeout_close_wait": 3600,
        "nf_conntrack_tcp_be_liberal": 1,
        "nf_conntrack_udp_timeout": 5,
        "nf_conntrack_udp_timeout_stream": 6,
    }
