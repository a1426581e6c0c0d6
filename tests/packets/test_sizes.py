"""What is compiled once is right for every size that a build is loaded with.

The sources are compiled for their sizes here, with macros that have the sizes' own values, as a
compiler of C would be asked to; what is loaded has to be the same.
"""

from __future__ import annotations

from dataclasses import fields, replace
from unittest.mock import patch

import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader import source as sources
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.source import CSource, load

NUMBERS = features.of_this_kernel().numbers()
"""The numbers of a kernel that has every feature."""

ODD = Sizes(
    max_services=77,
    max_frontends=999,
    max_backends=555,
    max_backend_slots=1111,
    max_connections=8320,
    max_new_connections=333,
    max_direct_flows=1000,
    max_node_addresses=10,
    max_interfaces=7,
    max_source_ranges=5,
    max_affinities=9,
    max_schedule_chunks=21,
)
"""Every one is another number than all defaults."""


@pytest.fixture
def build(compiled: bytes) -> Bytecode:
    """What is compiled for all sizes."""
    return Bytecode.decode(compiled, load(Sizes()).code_digest)


@pytest.mark.slow
def test_maps_of_a_loaded_build_are_as_if_compiled_for_their_sizes(build: Bytecode) -> None:
    loaded = build.sized(load(ODD), NUMBERS)
    numbers = {**ODD.defines(), "LAYOUT_BYTES": sources.LAYOUT_BYTES}
    with patch.object(CSource, "defines", property(lambda _: numbers)):
        source = load(ODD)
        wanted = Bytecode.decode(compile_source(source), source.code_digest)
    assert loaded.layout.maps == wanted.layout.maps
    assert loaded.layout.digest == load(ODD).digest
    # Sizes are in the code in known places only, so the code for other sizes is the same but there.
    assert [program.code for program in build.programs] == [one.code for one in wanted.programs]


def test_every_size_is_that_of_a_map(build: Bytecode) -> None:
    """A size that no map has would be one that nobody can set."""
    entries = {table.max_entries for table in build.sized(load(ODD), NUMBERS).layout.maps.values()}
    assert {getattr(ODD, field.name) for field in fields(Sizes)} <= entries


@pytest.mark.parametrize(
    ("entries", "last"), [(1, 0), (2, 1), (1000, 511), (1024, 1023), (262144, 262143)]
)
def test_an_index_of_a_table_is_below_its_size(build: Bytecode, entries: int, last: int) -> None:
    """The mask in the instructions leaves as many entries as a power of two can."""
    names = {name for program in build.programs for _, name in program.sizes}
    assert names == {*sources.loaded_numbers(ODD), *NUMBERS}
    sized = build.sized(load(replace(ODD, max_direct_flows=entries)), NUMBERS)
    masks = {
        done.code[at : at + 4]
        for one, done in zip(build.programs, sized.programs, strict=True)
        for at, name in one.sizes
        if name == "mask_direct_flows"
    }
    assert masks == {last.to_bytes(4, "little")}


def test_sizes_that_programs_calculate_with_are_written_into_their_instructions(
    build: Bytecode,
) -> None:
    """With these sizes every program that uses one differs, in one constant for each use."""
    small = build.sized(load(replace(ODD, max_connections=64)), NUMBERS)
    large = build.sized(load(replace(ODD, max_connections=1 << 20)), NUMBERS)
    used = 0
    for program, lesser, greater in zip(
        build.programs, small.programs, large.programs, strict=True
    ):
        places = [at for at, name in program.sizes if name == "max_connections"]
        for at in places:
            assert lesser.code[at : at + 4] == (64).to_bytes(4, "little")
            assert greater.code[at : at + 4] == (1 << 20).to_bytes(4, "little")
        used += len(places)
        assert (lesser.code != greater.code) == bool(places)
    assert used
