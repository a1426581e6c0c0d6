"""The memory in which programs mark outcomes, shared by all processes of a test run.

The pytest process makes a map and pins it. What it starts (agents) gets the pin's path by the
environment, and opens the map: so marks do not depend on how an agent ends. (An agent may not open
a map by its number: that takes CAP_SYS_ADMIN.) Only tests read this variable.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bpfsvc.datapath import syscall
from bpfsvc.datapath.kernel_names import kernel_name
from bpfsvc.datapath.loader import creation
from bpfsvc.datapath.maps.layout import MapLayout, Record
from tests.branches.instructions import branches, decode
from tests.branches.marks import marked_outcomes, with_marks
from tests.branches.places import Branch

DIRECTORY = "BPFSVC_BRANCHES"
"""The variable with the directory of the run: what was compiled, and what was seen."""
MAP = "BPFSVC_BRANCHES_MAP"
"""The variable with the path where the map is pinned."""
PLACES = "places.json"
REFUSALS = "refusals"

_MMAPABLE = 1 << 10
_KEPT, _REMOVED = 1, 2


class Loading(Protocol):
    """``creation.load_program``."""

    def __call__(
        self,
        name: str,
        kind: int,
        attach_type: int,
        code: bytes,
        license_text: str,
        subprograms: Sequence[tuple[int, int]] = ...,
    ) -> int: ...


class Recorder:
    """The marks of one run. Two bytes for each outcome: it was seen; the verifier has kept it."""

    def __init__(self, directory: Path, pin: Path | None = None) -> None:
        self._directory = directory
        programs = json.loads((directory / PLACES).read_text())
        self._programs: dict[str, tuple[int, list[int]]] = {}
        self.count = 0
        for name, (_, jumps) in programs.items():
            operations = [Branch(*jump).operation for jump in jumps]
            self._programs[kernel_name(name)] = (self.count, operations)
            self.count += 2 * len(jumps)
        size = -(-2 * self.count // mmap.PAGESIZE) * mmap.PAGESIZE
        if pin:
            self.fd = syscall.get(pin)
        else:
            value = Record((("marks", f"{size}s"),))
            layout = MapLayout("array", Record((("key", "I"),)), value, 1, _MMAPABLE)
            self.fd = creation.create_map("branches", layout)
        (self.map_id,) = struct.unpack_from("=4xI", syscall.info(self.fd, 8))
        self._memory = mmap.mmap(self.fd, size)

    def take(self) -> list[int]:
        """Return the outcomes that were marked since the last call."""
        seen = self._memory[: self.count]
        if not any(seen):
            return []
        self._memory[: self.count] = bytes(self.count)
        return [outcome for outcome, byte in enumerate(seen) if byte]

    def loaded(self) -> tuple[list[int], list[int]]:
        """Return the outcomes that the verifier kept, and those that it has proved impossible."""
        states = self._memory[self.count : 2 * self.count]
        kept = [outcome for outcome, state in enumerate(states) if state == _KEPT]
        return kept, [outcome for outcome, state in enumerate(states) if state == _REMOVED]

    def load(self, load: Loading) -> Loading:
        """Return a function that loads programs with marks, by ``creation.load_program``."""

        def load_marked(
            name: str,
            kind: int,
            attach_type: int,
            code: bytes,
            license_text: str,
            subprograms: Sequence[tuple[int, int]] = (),
        ) -> int:
            first, operations = self._programs.get(name, (0, []))
            instructions = decode(code)
            # Tests load programs of older sources, too: those would mark what they are not.
            here = [instructions[at].operation for at in branches(instructions)]
            if not operations or here != operations:
                return load(name, kind, attach_type, code, license_text, subprograms)
            marked = with_marks(code, self.functions(code, subprograms), self.fd, first)
            functions = marked.subprograms if subprograms else ()
            try:
                fd = load(name, kind, attach_type, marked.code, license_text, functions)
            except OSError as error:
                fd = load(name, kind, attach_type, code, license_text, subprograms)
                self._note_refusal(f"{name}: {error}")
                return fd
            if marked.left_out:
                self._note_refusal(f"{name}: {marked.left_out} outcomes without a register")
            self._note_loaded(fd, range(first, first + 2 * len(operations)))
            return fd

        return load_marked

    @staticmethod
    def functions(
        code: bytes, subprograms: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, int], ...]:
        """Return where subprograms begin, also where the kernel is not told of them."""
        if subprograms:
            return tuple(subprograms)
        instructions = decode(code)
        starts = {
            at + 1 + instruction.number
            for at, instruction in enumerate(instructions)
            if instruction.is_subprogram_call
        }
        return tuple((start * 8, 0) for start in sorted(starts))

    def _note_loaded(self, fd: int, outcomes: range) -> None:
        kept = marked_outcomes(_as_loaded(fd), self.map_id)
        for outcome in outcomes:
            at = self.count + outcome
            if outcome in kept:
                self._memory[at] = _KEPT
            elif not self._memory[at]:
                self._memory[at] = _REMOVED

    def _note_refusal(self, text: str) -> None:
        with (self._directory / REFUSALS).open("a") as file:
            file.write(f"{text}\n")


def _as_loaded(fd: int) -> bytes:
    """Return the instructions of a program after the verifier."""
    (size,) = struct.unpack_from("=20xI", syscall.info(fd, 24))
    code = ctypes.create_string_buffer(size)
    info = ctypes.create_string_buffer(struct.pack("=20xI8xQ", size, ctypes.addressof(code)), 40)
    syscall.call(syscall.OBJ_GET_INFO, struct.pack("=IIQ", fd, 40, ctypes.addressof(info)))
    return code.raw


def record() -> Recorder:
    """Have this process load programs with marks; make the map if there is none."""
    pin = os.environ.get(MAP)
    recorder = Recorder(Path(os.environ[DIRECTORY]), Path(pin) if pin else None)
    creation.load_program = recorder.load(creation.load_program)
    return recorder


def record_in_agent() -> None:
    """Do the same in a process that a test has started. It may have no right to open the map."""
    try:
        record()
    except OSError as error:
        print(f"branches are not counted here: {error}", file=sys.stderr)
