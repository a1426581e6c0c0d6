"""A chain of headers checks each where only what it includes itself precedes it."""

from __future__ import annotations

from itertools import pairwise

from bpfsvc.datapath.loader.source import directory
from tests.lint.headers import all_includes, chains, headers


def test_every_header_is_in_one_chain_after_headers_that_it_includes() -> None:
    includes = all_includes(directory())
    found_chains = chains(includes)
    assert sorted(header for chain in found_chains for header in chain) == headers(directory())
    for chain in found_chains:
        for before, header in pairwise(chain):
            assert includes[before] | {before} <= includes[header]


def test_chains_are_as_few_as_there_can_be() -> None:
    includes: dict[str, set[str]] = {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"a", "b"}}
    assert sorted(map(len, chains(includes))) == [1, 3]
