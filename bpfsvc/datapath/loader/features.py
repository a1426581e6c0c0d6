"""What programs use of newer kernels, and what becomes of the programs where a kernel lacks it.

Programs are compiled once for all kernels. Where a feature is missing, the loader writes other
instructions into the programs, and everything else works. docs/kernels.md lists the features
for operators.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from bpfsvc.datapath import syscall
from bpfsvc.datapath.instructions import R1, R2, R3, R4, STACK, Code, register_byte
from bpfsvc.datapath.loader import creation, kernel_types
from bpfsvc.datapath.loader.bytecode import INSTRUCTION

_SCHED_CLS, _RAW_TRACEPOINT, _SOCK_ADDR = 3, 17, 18
_CONNECT4 = 10
_TCX_INGRESS = 46
_NO_INTERFACE = 0x7FFFFFF0

_KTIME_GET_NS, _PROBE_READ_KERNEL, _KTIME_GET_COARSE_NS = 5, 113, 160
_SET_RETVAL = 187
_SKC_TO_MPTCP_SOCK = 196

_CALL, _ATOMIC_8, _ATOMIC_4 = 0x85, 0xDB, 0xC3
_ATOMIC_ADD = 0


class Feature(NamedTuple):
    """``since``: the first Linux that has it. ``without``: what an operator has where it is not."""

    name: str
    since: str
    without: str


COARSE_CLOCK = Feature(
    "the coarse clock", "5.11", "packets read the exact clock, which costs some 20 ns each"
)
ATOMICS = Feature(
    "atomic operations that return a value",
    "5.12",
    "schedulers that compare connections may count one too many or too few until the next"
    " recount; getpeername() of pods costs more memory",
)
MEMORY_ARGUMENTS = Feature(
    "functions of programs with pointers to memory", "5.13", "the start takes seconds longer"
)
SET_RETVAL = Feature(
    "bpf_set_retval",
    "5.18",
    "connect() of the node's own programs to a Service without endpoints is refused by a packet"
    " with TCP, and with UDP says EPERM, as with kube-proxy",
)
MPTCP = Feature(
    "bpf_skc_to_mptcp_sock, or CONFIG_MPTCP",
    "5.19",
    "getpeername() of MPTCP sockets says the backend, not the Service",
)
TCX = Feature(
    "tcx links", "6.6", "programs attach as filters of clsact qdiscs; a packet costs some ns more"
)

SOCKET_TRACEPOINTS = Feature(
    "tracepoints of sockets, or CAP_PERFMON, or the kernel's own types (CONFIG_DEBUG_INFO_BTF)",
    "5.10",
    "failed connections that packets do not show (socket LB) are not counted, and times to connect"
    " are not measured",
)

DROP_REASONS = Feature(
    "reasons of dropped packets, or CAP_PERFMON, or the kernel's own types (CONFIG_DEBUG_INFO_BTF)",
    "5.17",
    "bpfsvc observe --drops-elsewhere is refused, and --count-drops-elsewhere counts nothing",
)


@dataclass(frozen=True, slots=True)
class Features:
    """The features of newer kernels that this kernel has."""

    has: frozenset[Feature]

    def missing(self) -> tuple[Feature, ...]:
        """Return what this kernel lacks, the newest feature last."""
        return tuple(feature for feature in _PROBES if feature not in self.has)

    def numbers(self) -> dict[str, int]:
        """Return the numbers that programs ask for, by ``enum loaded_number``."""
        offsets = _SOCKET_OFFSETS | (_socket_offsets() if SOCKET_TRACEPOINTS in self.has else {})
        return {"atomics": int(ATOMICS in self.has), **offsets}

    def adapted(self, code: bytes) -> bytes:
        """Return the instructions of a program with nothing in them that this kernel refuses."""
        made = bytearray(code)
        for at in range(0, len(code), INSTRUCTION):
            replaced = self._replaced(*struct.unpack_from("=BBhi", code, at))
            if replaced is not None:
                struct.pack_into("=BBhi", made, at, *replaced)
        return bytes(made)

    def _replaced(
        self, operation: int, registers: int, offset: int, number: int
    ) -> tuple[int, int, int, int] | None:
        """Return what stands in place of an instruction; None for the instruction itself."""
        if operation == _CALL and not registers and number in _HELPERS:
            feature, instead = _HELPERS[number]
            return None if feature in self.has else instead
        if operation in (_ATOMIC_8, _ATOMIC_4) and number != _ATOMIC_ADD:
            # Nothing runs this instruction where LOADED_ATOMICS is 0, but the kernel reads it.
            return None if ATOMICS in self.has else (operation, registers, offset, _ATOMIC_ADD)
        return None


def _set_r0(number: int) -> tuple[int, int, int, int]:
    return 0xB7, 0, 0, number


_HELPERS = {
    _KTIME_GET_COARSE_NS: (COARSE_CLOCK, (_CALL, 0, 0, _KTIME_GET_NS)),
    _SET_RETVAL: (SET_RETVAL, _set_r0(-1)),
    _SKC_TO_MPTCP_SOCK: (MPTCP, _set_r0(0)),
}
"""Helpers of ``linux/bpf.h`` that programs can do without, and what stands in place of a call."""


@cache
def of_this_kernel() -> Features:
    """Return the features of the running kernel: each is tried. Nothing is attached, or stays."""
    return Features(frozenset(feature for feature, has in _PROBES.items() if has()))


def _has_coarse_clock() -> bool:
    return _loads(_SCHED_CLS, _calling(_KTIME_GET_COARSE_NS))


def _has_atomics() -> bool:
    code = Code()
    code.calculate(R1, "=", 0)
    code.store(STACK, -8, R1)
    code.leave(0)
    instructions = code.finish()
    fetch_and_or = struct.pack("=BBhi", _ATOMIC_8, register_byte(STACK, R1), -8, 0x41)
    return _loads(_SCHED_CLS, instructions[:-16] + fetch_and_or + instructions[-16:])


def _has_memory_arguments() -> bool:
    """Try a program with a subprogram that is handed a pointer to 8 bytes."""
    program = Code()
    program.calculate(R1, "=", 0)
    program.store(STACK, -8, R1)
    program.move(R1, STACK)
    program.calculate(R1, "+", -8)
    head = program.finish()
    end = Code()
    end.leave(0)
    subprogram = end.finish()
    # The distance of the call: behind the two instructions that end the program.
    call = struct.pack("=BBhi", _CALL, register_byte(0, 1), 0, len(subprogram) // INSTRUCTION)
    code = head + call + subprogram
    return _loads(_SCHED_CLS, code + subprogram, subprograms=((len(code), 8),))


def _has_set_retval() -> bool:
    return _loads(_SOCK_ADDR, _calling(_SET_RETVAL), _CONNECT4)


def _has_mptcp() -> bool:
    """The helper refuses the number 0 for a socket, by another error than for no helper."""
    try:
        os.close(_load(_SOCK_ADDR, _calling(_SKC_TO_MPTCP_SOCK), _CONNECT4))
    except OSError as error:
        return error.errno == errno.EACCES
    return True


def _has_tcx() -> bool:
    """True if the kernel knows the type of link: only then it looks for the interface."""
    code = Code()
    code.leave(0)
    try:
        program = _load(_SCHED_CLS, code.finish())
    except OSError:
        return False
    try:
        os.close(syscall.link_create(program, _NO_INTERFACE, _TCX_INGRESS))
    except OSError as error:
        return error.errno == errno.ENODEV
    finally:
        os.close(program)
    return True


_SOCKET_OFFSETS = {"socket_state": 0, "socket_cookie": 0, "socket_v6": 0}
"""What programs are given that are not loaded."""

_socket_offsets = cache(kernel_types.socket_offsets)


def _has_socket_tracepoints() -> bool:
    """True if the kernel says where the fields are, and lets this process read its memory."""
    return bool(_socket_offsets()) and _loads(_RAW_TRACEPOINT, _reading_memory())


def _has_drop_reasons() -> bool:
    """True if the kernel has names for reasons, which its tracepoint tells since then."""
    return _has_socket_tracepoints() and kernel_types.has_drop_reasons()


def _reading_memory() -> bytes:
    """Return a program that would read eight bytes of the kernel's memory."""
    code = Code()
    code.calculate(R1, "=", 0)
    code.store(STACK, -8, R1)
    code.move(R1, STACK)
    code.calculate(R1, "+", -8)
    code.calculate(R2, "=", 8)
    code.calculate(R3, "=", 0)
    code.call(_PROBE_READ_KERNEL)
    code.leave(0)
    return code.finish()


_PROBES: dict[Feature, Callable[[], bool]] = {
    SOCKET_TRACEPOINTS: _has_socket_tracepoints,
    COARSE_CLOCK: _has_coarse_clock,
    ATOMICS: _has_atomics,
    MEMORY_ARGUMENTS: _has_memory_arguments,
    DROP_REASONS: _has_drop_reasons,
    SET_RETVAL: _has_set_retval,
    MPTCP: _has_mptcp,
    TCX: _has_tcx,
}


def _calling(helper: int) -> bytes:
    """Return a program that calls a helper with numbers for arguments, and allows what it is at."""
    code = Code()
    for register in (R1, R2, R3, R4):
        code.calculate(register, "=", 0)
    code.call(helper)
    code.leave(1)
    return code.finish()


def _load(
    kind: int, code: bytes, attach_type: int = 0, subprograms: tuple[tuple[int, int], ...] = ()
) -> int:
    return creation.load_program("bpfsvc_probe", kind, attach_type, code, "GPL", subprograms)


def _loads(
    kind: int, code: bytes, attach_type: int = 0, subprograms: tuple[tuple[int, int], ...] = ()
) -> bool:
    try:
        os.close(_load(kind, code, attach_type, subprograms))
    except OSError:
        return False
    return True


def lines(missing: tuple[Feature, ...]) -> Iterator[str]:
    """Yield a line for each feature that a kernel lacks, for logs and reports."""
    for feature in missing:
        yield f"no {feature.name} (Linux {feature.since}): {feature.without}"
