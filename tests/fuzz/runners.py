"""Test runs of programs on frames, many of them."""

from __future__ import annotations

import ctypes
import errno
import os

from bpfsvc.datapath import syscall

ROOM = 4096
"""Bytes of the longest frame that is run."""


class _Attributes(ctypes.Structure):
    """Of BPF_PROG_TEST_RUN, in ``linux/bpf.h``."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("program", "verdict", "size", "room")),
        *((name, ctypes.c_uint64) for name in ("data", "out")),
        *((name, ctypes.c_uint32) for name in ("repeat", "ns", "context_size", "context_room")),
        *((name, ctypes.c_uint64) for name in ("context", "context_out")),
        *((name, ctypes.c_uint32) for name in ("flags", "cpu", "batch", "zero")),
    ]


_WHOLE = 256
"""Room for the context of any program, in bytes."""


class _Runner:
    """Runs a program on frames: as ``syscall.program_test_run``, with memory that is made once."""

    def __init__(self, program: int, words: int) -> None:
        self._in = ctypes.create_string_buffer(ROOM)
        self._out = ctypes.create_string_buffer(ROOM + 256)
        self._context = (ctypes.c_uint32 * words)()
        self._context_out = (ctypes.c_uint32 * (_WHOLE // 4))()
        self._frame = memoryview(self._in).cast("B")
        self._after = memoryview(self._out).cast("B")
        self._attributes = _Attributes(
            program=program,
            data=ctypes.addressof(self._in),
            out=ctypes.addressof(self._out),
            repeat=1,
            context_size=words * 4,
            context=ctypes.addressof(self._context),
            context_out=ctypes.addressof(self._context_out),
        )
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_ulong]
        self._number = syscall.SYS_BPF[os.uname().machine]
        self._at = ctypes.addressof(self._attributes)
        self._bytes = ctypes.sizeof(self._attributes)

    def _run(self, frame: bytes) -> tuple[int, bytes]:
        attributes, size = self._attributes, len(frame)
        self._frame[:size] = frame
        attributes.size = size
        attributes.room = ROOM + 256
        attributes.context_room = _WHOLE
        while self._call(self._number, syscall.PROG_TEST_RUN, self._at, self._bytes) < 0:
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "test run")
            attributes.size = size
        # The kernel returns the size of what came out in place of the room for it.
        return attributes.verdict, bytes(self._after[: attributes.room])


class HookRunner(_Runner):
    """Runs a program of a tc hook. Its context is ``struct __sk_buff`` up to ``ifindex``."""

    _MARK, _CAME_BY, _INTERFACE, _WORDS = 2, 9, 10, 11

    def __init__(self, program: int) -> None:
        super().__init__(program, self._WORDS)

    def run(
        self, frame: bytes, interface: int, came_by: int, mark: int = 0
    ) -> tuple[int, bytes, int]:
        """Run it; return the verdict, the frame as it is then, and its mark.

        * ``interface``: index of the interface whose hook it is.
        * ``came_by``: that of the interface where the frame came in; 0: the node has made it.
        """
        context = self._context
        context[self._MARK] = mark
        context[self._CAME_BY] = came_by
        context[self._INTERFACE] = interface
        verdict, after = self._run(frame)
        return verdict, after, self._context_out[self._MARK]


class XdpRunner(_Runner):
    """Runs a program of XDP. Its context is ``struct xdp_md``."""

    _END, _INTERFACE, _WORDS = 1, 3, 6

    def __init__(self, program: int, interface: int) -> None:
        super().__init__(program, self._WORDS)
        self._context[self._INTERFACE] = interface

    def run(self, frame: bytes) -> tuple[int, bytes]:
        """Run it; return the verdict and the frame as it is then."""
        self._context[self._END] = len(frame)
        return self._run(frame)
