"""Programs on kernels that lack a feature which the programs can do without."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.datapath.loader.features import (
    ATOMICS,
    COARSE_CLOCK,
    MPTCP,
    SET_RETVAL,
    SOCKET_TRACEPOINTS,
    Feature,
    Features,
    lines,
)

NONE = Features(frozenset())


def instruction(operation: int, registers: int, number: int, offset: int = 0) -> bytes:
    return struct.pack("=BBhi", operation, registers, offset, number)


def call(helper: int) -> bytes:
    return instruction(0x85, 0, helper)


EXIT = instruction(0x95, 0, 0)
FETCH_AND_OR = instruction(0xDB, 0x1A, 0x41, -8)
COMPARE_AND_SWAP = instruction(0xDB, 0x1A, 0xF1, -8)
ADD = instruction(0xDB, 0x1A, 0, -8)


@pytest.mark.parametrize(
    ("feature", "code", "instead"),
    [
        (MPTCP, call(196), instruction(0xB7, 0, 0)),
        (SET_RETVAL, call(187), instruction(0xB7, 0, -1)),
        (COARSE_CLOCK, call(160), call(5)),
        (ATOMICS, FETCH_AND_OR, ADD),
        (ATOMICS, COMPARE_AND_SWAP, ADD),
    ],
)
def test_what_a_kernel_lacks_is_written_otherwise(
    feature: Feature, code: bytes, instead: bytes
) -> None:
    assert NONE.adapted(code + EXIT) == instead + EXIT
    assert Features(frozenset({feature})).adapted(code + EXIT) == code + EXIT


def test_other_instructions_stay() -> None:
    """Among them a call of another helper, one of a function of the program, and a constant."""
    code = call(1) + instruction(0x85, 0x10, 196) + instruction(0xB7, 0, 196) + ADD + EXIT
    assert NONE.adapted(code) == code


def test_programs_are_told_that_the_kernel_has_no_atomic_operations_that_return_a_value() -> None:
    assert NONE.numbers()["atomics"] == 0
    assert Features(frozenset({ATOMICS})).numbers()["atomics"] == 1


def test_programs_are_told_where_the_kernel_keeps_the_fields_of_sockets() -> None:
    assert NONE.numbers()["socket_state"] == NONE.numbers()["socket_cookie"] == 0
    numbers = Features(frozenset({SOCKET_TRACEPOINTS})).numbers()
    assert 0 < numbers["socket_state"] < numbers["socket_cookie"]


def test_each_missing_feature_is_one_line_that_says_what_is_lost() -> None:
    everything = NONE.missing()
    assert len(list(lines(everything))) == len(everything) == 8
    assert next(lines((SET_RETVAL,))).startswith("no bpf_set_retval (Linux 5.18): connect()")
