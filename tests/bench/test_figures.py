"""The frames of a flood, and what is made of figures."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.base.checksum import checksum
from bpfsvc.devtools.bench import syns
from bpfsvc.devtools.bench.figures import Spread, percentile


@pytest.mark.parametrize("number", [0, 1, 64_511, 64_512, 5_000_000], ids=lambda n: f"SYN {n}")
def test_every_syn_of_the_flood_has_correct_checksums(number: int) -> None:
    """For any source, both checksums of the frame are correct."""
    make = syns.maker(b"\2" + bytes(5), b"\4" + bytes(5), ("192.0.2.77", 30080))
    frame = make(number)
    assert len(frame) == 54
    assert checksum(frame[14:34]) == 0
    assert checksum(frame[34:] + frame[26:34] + struct.pack("!HH", 6, 20)) == 0


def test_spread_holds_median_quartiles_and_ends() -> None:
    """Between two values the line between them counts."""
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == (3.0, 1.0, 2.0, 4.0, 5.0)
    assert percentile([1.0, 2.0], 90) == pytest.approx(1.9)
