"""Durations in Go's notation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.config.durations import Duration, parse

TEXTS = {
    "0": (0, "0s"),
    "0s": (0, "0s"),
    "30s": (30, "30s"),
    "1h2m3s": (3723, "1h2m3s"),
    "24h": (86400, "24h0m0s"),
    "90m": (5400, "1h30m0s"),
    "500ms": (0.5, "500ms"),
    "1.5h": (5400, "1h30m0s"),
    ".5s": (0.5, "500ms"),
    "1.s": (1, "1s"),
    "1.25s": (1.25, "1.25s"),
    "12us": (12e-6, "12µs"),
    "12µs": (12e-6, "12µs"),
    "7ns": (7e-9, "7ns"),
    "-1m30s": (-90, "-1m30s"),
    "+5s": (5, "5s"),
    "1s1h": (3601, "1h0m1s"),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items(), ids=TEXTS.keys())
def test_notations(text: str, expected: tuple[float, str]) -> None:
    """What Go reads is read, and written as Go writes it."""
    duration = parse(text)
    assert (duration.seconds, str(duration)) == expected


@pytest.mark.parametrize("text", ["", "s", "5", "1d", "1 s", "1,5s", "--1s", "1e3s", "٣s", "9e9h"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    """A number needs its unit, and there is none beyond the hour."""
    with pytest.raises(ValueError, match="expected a duration such as 30s"):
        parse(text)


def test_a_duration_too_long_for_go_is_refused() -> None:
    """It would overflow there."""
    assert parse("2562047h47m16.854775807s") == Duration((1 << 63) - 1)
    with pytest.raises(ValueError, match="expected a duration"):
        parse("2562047h47m16.854775808s")


@settings(deadline=None)
@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_a_written_duration_is_read_again(nanoseconds: int) -> None:
    """To the nanosecond."""
    assert parse(str(Duration(nanoseconds))) == Duration(nanoseconds)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.sampled_from(["h", "m", "s", "ms", "us", "ns"])),
        min_size=1,
        max_size=6,
    )
)
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    """In any order, and twice the same."""
    units = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse(text).nanoseconds == sum(number * units[unit] for number, unit in parts)


@settings(deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_durations_compare_by_their_lengths(left: int, right: int) -> None:
    """And only the empty one is false."""
    assert (Duration(left) < Duration(right)) == (left < right)
    assert (Duration(left) >= Duration(right)) == (left >= right)
    assert (Duration(left) == Duration(right)) == (left == right)
    assert bool(Duration(left)) == bool(left)
