"""The table at the head of ``bpfsvc.c`` says who jumps to each step, as the programs do."""

from __future__ import annotations

import re
import struct
from collections import defaultdict

from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.loader.source import directory
from tests.packets.cached_node import SOURCE

HOOKS = {"ingress", "egress", "ingress_l3", "egress_l3"}

_TAIL_CALL = (0x85, 0, 12)
_LOAD_IMMEDIATE = 0x18
_JUMPS, _ALWAYS, _CALLS, _EXIT = (5, 6), 0x00, 0x80, 0x90
_SETS_CONSTANT, _COPIES = (0xB4, 0xB7), (0xBC, 0xBF)
_WRITES_REGISTER = (0, 1, 4, 7)
"""Classes of instructions: loads, and arithmetic with 32 and 64 bits."""

_NAME = re.compile(r"\w+")

_NUMBER = 3
"""The register with the index of the step (bpf_tail_call)."""


_REPLACED = -1
"""In place of an index that is calculated: of a program of the build that is being replaced."""


def jumps(program: Program) -> set[int]:
    """Return the steps that ``program`` may jump to, by their constants in its code."""
    code = [
        struct.unpack_from("=BBhi", program.code, at)
        for at in range(0, len(program.code), INSTRUCTION)
    ]
    before = defaultdict(list)
    for at, (operation, _, offset, _) in enumerate(code):
        for following in _following(at, operation, offset):
            before[following].append(at)
    calls = [
        at
        for at, (operation, registers, _, number) in enumerate(code)
        if (operation, registers, number) == _TAIL_CALL
    ]
    todo = [(previous, _NUMBER) for at in calls for previous in before[at]]
    seen = set()
    steps = set()
    while todo:
        at, register = todo.pop()
        if (at, register) in seen:
            continue
        seen.add((at, register))
        operation, registers, _, constant = code[at]
        if operation & 7 in _WRITES_REGISTER and registers & 15 == register:
            if operation in _SETS_CONSTANT:
                steps.add(constant)
                continue
            if operation not in _COPIES:
                steps.add(_REPLACED)
                continue
            register = registers >> 4
        todo += [(previous, register) for previous in before[at]]
    return steps


def _following(at: int, operation: int, offset: int) -> list[int]:
    """Return where the program may go on after the instruction at ``at``."""
    if operation & 7 not in _JUMPS or operation & 0xF0 == _CALLS:
        return [at + 2 if operation == _LOAD_IMMEDIATE else at + 1]
    if operation & 0xF0 == _EXIT:
        return []
    return [at + 1 + offset] if operation & 0xF0 == _ALWAYS else [at + 1, at + 1 + offset]


def table() -> dict[str, set[str]]:
    """Return the steps of the table, and who jumps to each: steps, and ``hooks``."""
    head = (directory() / "bpfsvc.c").read_text().split("*/")[0]
    rows: dict[str, set[str]] = {}
    step = ""
    for line in head.split("jumped to by")[1].splitlines()[2:]:
        columns = line.expandtabs()
        name, programs = columns[8:24].strip(), columns[24:56]
        step = name or step
        rows.setdefault(step, set()).update(
            step if program == "itself" else program for program in _NAME.findall(programs)
        )
    return rows


def test_the_table_names_who_jumps_to_each_step(compiled: bytes) -> None:
    build = Bytecode.decode(compiled, SOURCE.code_digest)
    steps = {n: step.removeprefix("step_").upper() for n, step in enumerate(build.steps)}
    steps[_REPLACED] = "REPLACED"
    callers: dict[str, set[str]] = {step: set() for step in steps.values()}
    for program in build.programs:
        name = "hooks" if program.name in HOOKS else program.name.removeprefix("step_").upper()
        for number in jumps(program):
            callers[steps[number]].add(name)
    assert table() == callers
