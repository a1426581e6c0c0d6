"""Programs with marks do what they did without, and note which way their jumps went."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader import creation
from bpfsvc.devtools.lab import sandbox
from tests.branches.instructions import STACK, Instruction, decode
from tests.branches.recorder import PLACES, Recorder

_SCHED_CLS = 3
_SET, _ADD, _MOVE, _ADD_REGISTER, _STORE = 0xB7, 0x07, 0xBF, 0x0F, 0x63
_IF_EQUAL, _IF_ABOVE, _GOTO, _CALL, _EXIT = 0x15, 0x25, 0x05, 0x85, 0x95
_READ_4 = 0x61
_LENGTH = 0
"""Where ``struct __sk_buff`` has the length of the packet."""

EXIT = Instruction(_EXIT, 0, 0, 0, 0)


def put(register: int, number: int) -> Instruction:
    return Instruction(_SET, register, 0, 0, number)


def encoded(code: list[Instruction]) -> bytes:
    return b"".join(instruction.encode() for instruction in code)


class Case:
    """A program of a test, loaded with marks."""

    def __init__(self, directory: Path, code: list[Instruction], operations: list[int]) -> None:
        sandbox.require()
        jumps = [("", 0, 0, operation, 0) for operation in operations]
        (directory / PLACES).write_text(json.dumps({"other": ["", jumps[:1]], "p": ["", jumps]}))
        self.directory = directory
        self.recorder = Recorder(directory)
        load = self.recorder.load(creation.load_program)
        self.fd = load("bpfsvc_p", _SCHED_CLS, 0, encoded(code), "GPL")

    def run(self, length: int) -> tuple[int, list[int]]:
        """Run it on a packet of this length; return its verdict, and the outcomes it marked."""
        verdict, _ = syscall.program_test_run(self.fd, bytes(length))
        return verdict, [outcome - 2 for outcome in self.recorder.take()]

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.recorder.fd)


TWO_BRANCHES = [
    Instruction(_READ_4, 1, 1, _LENGTH, 0),
    put(0, 1),
    Instruction(_IF_EQUAL, 1, 0, 3, 60),
    put(0, 2),
    Instruction(_IF_ABOVE, 1, 0, 1, 100),
    put(0, 3),
    EXIT,
]


@pytest.mark.parametrize(
    ("length", "verdict", "marks"), [(60, 1, [1]), (101, 2, [0, 3]), (99, 3, [0, 2])]
)
def test_each_side_of_a_jump_has_its_mark_and_verdicts_stay(
    tmp_path: Path, length: int, verdict: int, marks: list[int]
) -> None:
    case = Case(tmp_path, TWO_BRANCHES, [_IF_EQUAL, _IF_ABOVE])
    assert case.run(length) == (verdict, marks)
    assert case.recorder.take() == []
    case.close()


def test_a_program_that_uses_all_registers_keeps_their_values(tmp_path: Path) -> None:
    sums = [Instruction(_ADD_REGISTER, 0, register, 0, 0) for register in range(1, 10)]
    code = [
        Instruction(_READ_4, 1, 1, _LENGTH, 0),
        *(put(register, 1 << register) for register in range(2, 10)),
        put(0, 1000),
        Instruction(_IF_EQUAL, 1, 0, 1, 60),
        Instruction(_ADD, 0, 0, 0, 1),
        *sums,
        EXIT,
    ]
    case = Case(tmp_path, code, [_IF_EQUAL])
    everything = sum(1 << register for register in range(2, 10)) + 1000
    assert case.run(60) == (everything + 60, [1])
    assert case.run(64) == (everything + 64 + 1, [0])
    case.close()


def test_a_mark_without_register_and_stack_is_left_out_and_noted(tmp_path: Path) -> None:
    sums = [Instruction(_ADD_REGISTER, 0, register, 0, 0) for register in range(1, 10)]
    code = [
        Instruction(_READ_4, 1, 1, _LENGTH, 0),
        *(put(register, 1) for register in (*range(2, 10), 0)),
        Instruction(_STORE, STACK, 1, -512, 0),
        Instruction(_IF_EQUAL, 1, 0, 1, 60),
        Instruction(_ADD, 0, 0, 0, 1),
        *sums,
        EXIT,
    ]
    case = Case(tmp_path, code, [_IF_EQUAL])
    assert case.run(60) == (69, [])
    assert (tmp_path / "refusals").read_text() == "bpfsvc_p: 2 outcomes without a register\n"
    case.close()


def test_a_subprogram_has_marks_and_is_called_where_it_is(tmp_path: Path) -> None:
    code = [
        Instruction(_READ_4, 1, 1, _LENGTH, 0),
        Instruction(_IF_EQUAL, 1, 0, 1, 60),
        put(1, 61),
        Instruction(_CALL, 0, 1, 0, 2),
        Instruction(_ADD, 0, 0, 0, 100),
        EXIT,
        put(0, 1),
        Instruction(_IF_EQUAL, 1, 0, 1, 61),
        put(0, 2),
        EXIT,
    ]
    case = Case(tmp_path, code, [_IF_EQUAL, _IF_EQUAL])
    assert case.run(60) == (102, [1, 2])
    assert case.run(70) == (101, [0, 3])
    case.close()


def test_what_the_verifier_has_removed_is_known(tmp_path: Path) -> None:
    code = [put(0, 1), Instruction(_IF_EQUAL, 0, 0, 1, 1), put(0, 2), EXIT]
    case = Case(tmp_path, code, [_IF_EQUAL])
    assert case.run(60) == (1, [1])
    assert case.recorder.loaded() == ([3], [2])
    case.close()


def test_a_program_that_was_built_otherwise_gets_no_marks(tmp_path: Path) -> None:
    case = Case(tmp_path, TWO_BRANCHES, [_IF_EQUAL, _IF_EQUAL])
    assert case.run(60) == (1, [])
    case.close()


def test_a_process_that_is_started_marks_in_the_same_map(tmp_path: Path) -> None:
    case = Case(tmp_path, TWO_BRANCHES, [_IF_EQUAL, _IF_ABOVE])
    pin = sandbox.BPF_ROOT / "marks"
    syscall.pin(case.recorder.fd, pin)
    again = Recorder(tmp_path, pin)
    pin.unlink()
    assert case.run(60) == (1, [1])
    load = again.load(creation.load_program)
    fd = load("bpfsvc_p", _SCHED_CLS, 0, encoded(TWO_BRANCHES), "GPL")
    syscall.program_test_run(fd, bytes(99))
    assert case.recorder.take() == [2, 4]
    for descriptor in (fd, again.fd):
        os.close(descriptor)
    case.close()


def test_instructions_are_read_and_written_alike() -> None:
    code = struct.pack("=BBhi", 0x18, 0x21, 0, 7) + struct.pack("=BBhi", 0, 0, 0, -1)
    assert encoded(decode(code)) == code
    assert [instruction.second for instruction in decode(code)] == [False, True]
