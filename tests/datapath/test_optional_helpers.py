"""Programs on kernels that lack a helper which they can do without."""

from __future__ import annotations

import struct

from bpfsvc.datapath.loader.optional_helpers import without_optional


def instruction(operation: int, registers: int, number: int) -> bytes:
    return struct.pack("=BBhi", operation, registers, 0, number)


EXIT = instruction(0x95, 0, 0)


def test_a_call_of_an_optional_helper_becomes_null() -> None:
    code = instruction(0x85, 0, 196) + EXIT
    assert without_optional(code) == instruction(0xB7, 0, 0) + EXIT


def test_other_instructions_stay() -> None:
    """Among them a call of another helper, one of a function of the program, and a constant."""
    code = instruction(0x85, 0, 1) + instruction(0x85, 0x10, 196) + instruction(0xB7, 0, 196) + EXIT
    assert without_optional(code) == code
