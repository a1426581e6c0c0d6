"""The weights that annotations write: what is read, and whose weight an endpoint has."""

from __future__ import annotations

import re

import pytest

from bpfsvc.base.address import pack
from bpfsvc.services.scheduling.weights import NO_WEIGHTS, Weights, parse_weight, parse_weights

HERE, THERE, SIXTH = pack("10.0.0.1"), pack("10.0.0.2"), pack("fd00::5")


def test_weights_are_of_addresses_nodes_and_zones() -> None:
    text = "zone/a=3, node/n2=1,10.0.0.1=0,fd00::5=65535,"
    assert parse_weights(text) == Weights({HERE: 0, SIXTH: 65535}, {"n2": 1}, {"a": 3})


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_text_has_no_weights(text: str) -> None:
    assert parse_weights(text) == NO_WEIGHTS


BAD = {
    "no weight": ("zone/a", "'zone/a' must be NAME=WEIGHT"),
    "no name": ("=3", "'' must be zone/NAME, node/NAME or an IP address"),
    "no name of a zone": ("zone/=3", "'zone/' must be zone/NAME, node/NAME or an IP address"),
    "another kind": ("pod/web=3", "'pod/web' must be zone/NAME, node/NAME or an IP address"),
    "a name alone": ("n2=3", "'n2' must be zone/NAME, node/NAME or an IP address"),
    "negative": ("node/n2=-1", "a weight must be 0 to 65535, not '-1'"),
    "too much": ("node/n2=65536", "a weight must be 0 to 65535, not '65536'"),
    "other digits": ("node/n2=٣", "a weight must be 0 to 65535, not '٣'"),
    "nothing": ("node/n2=", "a weight must be 0 to 65535, not ''"),
    "twice": ("node/n2=1,node/n2=2", "node/n2 has two weights"),
    "one address twice": ("fd00::5=1,fd00:0::5=2", "fd00:0::5 has two weights"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_a_bad_text_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse_weights(text)


def test_a_weight_of_a_slice_is_a_number() -> None:
    assert parse_weight(" 07 ") == 7
    with pytest.raises(ValueError, match=r"must be 0 to 65535, not '1\.5'"):
        parse_weight("1.5")


def test_a_number_may_have_40_digits() -> None:
    assert parse_weight("7".zfill(40)) == 7
    with pytest.raises(ValueError, match="must be 0 to 65535"):
        parse_weight("7".zfill(41))


def test_a_number_of_many_digits_is_refused_in_a_short_line() -> None:
    with pytest.raises(ValueError, match=r"a weight must be 0 to 65535, not '9+'") as error:
        parse_weight("9" * 5000)
    assert len(str(error.value)) < 100


def test_an_endpoint_has_the_weight_of_its_address_else_node_else_zone_else_slice() -> None:
    weights = parse_weights("10.0.0.1=0,node/n1=5,zone/a=7")
    assert weights.of(HERE, "n1", "a", 9) == 0
    assert weights.of(THERE, "n1", "a", 9) == 5
    assert weights.of(THERE, "n2", "a", 9) == 7
    assert weights.of(THERE, "", "", 9) == 9
    assert weights.of(THERE, "", "") == 1
