"""The body of a chunked response is the same however its bytes arrive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.kube.client.transport import BrokenOff, join_chunks

END = b"0\r\n\r\n"


def chunked(parts: list[bytes], end: bytes = END) -> bytes:
    return b"".join(b"%X\r\n%s\r\n" % (len(part), part) for part in parts if part) + end


def arriving(data: bytes, cuts: set[int]) -> Iterator[bytes]:
    """Return the bytes in several reads; no read is empty."""
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    return (data[start:end] for start, end in pairwise(places) if start < end)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.sets(st.integers(1, 300)))
def test_the_body_is_the_same_wherever_a_read_ends(parts: list[bytes], cuts: set[int]) -> None:
    """Line ends inside of the data are data."""
    assert b"".join(join_chunks(arriving(chunked([*parts, b"\r\n0\r\n"]), cuts))) == (
        b"".join(parts) + b"\r\n0\r\n"
    )


def test_every_byte_may_come_alone() -> None:
    data = chunked([b"first\r\n", b"x" * 300])
    assert b"".join(join_chunks(arriving(data, set(range(len(data)))))) == b"first\r\n" + b"x" * 300


def test_what_has_arrived_together_is_one_piece() -> None:
    data = chunked([b"one", b"two", b"three", b"four"])
    middle = data.index(b"ree")
    assert list(join_chunks(iter([data[:middle], data[middle:]]))) == [b"onetwoth", b"reefour"]


def test_extensions_and_a_trailer_are_no_data_and_nothing_is_read_behind_them() -> None:
    reads = iter([b"3;name=value\r\nabc\r\n0\r\nExpires: 0\r\n", b"\r\n", b"the next response"])
    assert list(join_chunks(reads)) == [b"abc"]
    assert next(reads) == b"the next response"


@pytest.mark.parametrize(
    "data",
    [
        chunked([b"abc"], b""),
        chunked([b"abc"], b"0\r\n"),
        b"5\r\nabc",
        b"five\r\nabcde\r\n" + END,
        b"-1\r\na\r\n" + END,
        b"\r\n" + END,
        b"1" * 70000,
    ],
)
def test_a_body_that_breaks_off_or_is_malformed_is_an_error(data: bytes) -> None:
    """Whole chunks before it are returned."""
    with pytest.raises(BrokenOff, match="broke off"):
        list(join_chunks(iter([data])))
