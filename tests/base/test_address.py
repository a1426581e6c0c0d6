"""Addresses as settings write them."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import address_and_port, cidr_family, is_address, pack, with_port

PLACES = {
    "10.0.0.1:80": ("10.0.0.1", 80),
    "[fd00::1]:80": ("fd00::1", 80),
    "0.0.0.0:65535": ("0.0.0.0", 65535),
    "fd00::1:80": None,
    "[10.0.0.1]:80": None,
    "[fd00::1:80": None,
    "10.0.0.1": None,
    "10.0.0.1:0": None,
    "10.0.0.1:65536": None,
    "10.0.0.1:http": None,
    "localhost:80": None,
    ":80": None,
    "": None,
}


@pytest.mark.parametrize(("text", "expected"), PLACES.items(), ids=PLACES.keys())
def test_an_address_and_a_port(text: str, expected: tuple[str, int] | None) -> None:
    assert address_and_port(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1:7"),
        ("fd00::1", "[fd00::1]:7"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_a_port_is_appended_to_an_address_only(text: str, expected: str) -> None:
    assert with_port(text, 7) == expected


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("10.0.0.0/8", 4),
        ("10.1.2.3/8", 4),
        ("fd00::/8", 6),
        ("10.0.0.0", 0),
        ("10.0.0.0/33", 0),
        ("10.0.0.0/255.0.0.0", 0),
        ("primary", 0),
        ("", 0),
    ],
)
def test_the_family_of_a_cidr(text: str, family: int) -> None:
    assert cidr_family(text) == family


def test_which_texts_are_addresses() -> None:
    texts = ("10.0.0.1", "::", "10.0.0.1/8", "host", "")
    assert [text for text in texts if is_address(text)] == ["10.0.0.1", "::"]


@pytest.mark.parametrize("text", ["", "host", "10.0.0.1\0", "\0", "\ud800", "10.0.0.1/8"])
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address"):
        pack(text)
