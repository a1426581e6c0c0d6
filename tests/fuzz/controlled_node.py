"""A node of packet tests whose programs have the clock and the random numbers of a history."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.loader.loader import load_build
from bpfsvc.datapath.loader.source import CSource, load
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled import Controls
from tests.packets.node import SIZES, Node

START_NS = 1_000_000_000_000
"""The clock at the beginning of a history: high enough for everything to be old."""


class MarkedSource(CSource):
    """The sources with the marks from hook to hook in ``mark``.

    A test run takes and returns this field of a packet, but not ``tc_index``. No program uses it.
    """

    @cached_property
    def text(self) -> str:
        assert "skb->mark" not in super().text
        return super().text.replace("skb->tc_index", "skb->mark")


def marked_source() -> CSource:
    """Return the sources of this checkout, with their marks in ``mark``."""
    plain = load(SIZES)
    return MarkedSource(plain.sizes, plain.root, plain.main)


def compiled(source: CSource | None = None) -> Bytecode:
    """Return what the sources compile to, from a file if they have been compiled before."""
    source = source or marked_source()
    # A folder of its own: in the other one these would push out the builds of other tests.
    cache = BytecodeCache(sandbox.COMPILED / "fuzz", source.code_digest, print)
    build = cache.read()
    if build is None:
        encoded = compile_source(source)
        cache.write(encoded)
        build = Bytecode.decode(encoded, source.code_digest)
    return build


ROOM = 4096
"""Bytes of the longest frame that is run."""

Change = Callable[[Bytecode], Bytecode]


class ControlledNode(Node):
    """The node; ``change`` plants faults into its programs, another ``source`` has some."""

    def __init__(
        self, directory: Path, change: Change = lambda build: build, source: CSource | None = None
    ) -> None:
        self.controls = Controls()
        self._change = change
        super().__init__(directory, source or marked_source())

    def load(self, source: CSource) -> None:
        self.root.create()
        build = compiled(source).sized(source, features.of_this_kernel().numbers())
        load_build(self.controls.controlled(self._change(build)), self.root.next)
        self.root.promote_next()
        self._use(Installation(self.root, Pinned(self.root.current), None, fresh=False))


class _Attributes(ctypes.Structure):
    """Of BPF_PROG_TEST_RUN, in ``linux/bpf.h``."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("program", "verdict", "size", "room")),
        *((name, ctypes.c_uint64) for name in ("data", "out")),
        *((name, ctypes.c_uint32) for name in ("repeat", "ns", "context_size", "context_room")),
        *((name, ctypes.c_uint64) for name in ("context", "context_out")),
        *((name, ctypes.c_uint32) for name in ("flags", "cpu", "batch", "zero")),
    ]


_MARK, _CAME_BY, _INTERFACE = 2, 9, 10
"""Where ``struct __sk_buff`` has them, in words of 4 bytes."""
_CONTEXT, _WHOLE = 44, 256
"""Bytes of it that are handed over, and room for all of it."""


class Runner:
    """Runs a program on frames: as ``syscall.program_test_run``, with memory that is made once."""

    def __init__(self, program: int, interface: int) -> None:
        self._in = ctypes.create_string_buffer(ROOM)
        self._out = ctypes.create_string_buffer(ROOM + 256)
        self._context = (ctypes.c_uint32 * (_CONTEXT // 4))()
        self._context_out = (ctypes.c_uint32 * (_WHOLE // 4))()
        self._context[_INTERFACE] = interface
        self._frame = memoryview(self._in).cast("B")
        self._after = memoryview(self._out).cast("B")
        self._attributes = _Attributes(
            program=program,
            data=ctypes.addressof(self._in),
            out=ctypes.addressof(self._out),
            repeat=1,
            context_size=_CONTEXT,
            context=ctypes.addressof(self._context),
            context_out=ctypes.addressof(self._context_out),
        )
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_ulong]
        self._number = syscall.SYS_BPF[os.uname().machine]
        self._at = ctypes.addressof(self._attributes)
        self._bytes = ctypes.sizeof(self._attributes)

    def run(self, frame: bytes, came_by: int, mark: int = 0) -> tuple[int, bytes, int]:
        """Run it; return the verdict, the frame as it is then, and its mark.

        ``came_by``: index of the interface where the frame came in; 0: the node has made it.
        """
        attributes, size = self._attributes, len(frame)
        self._frame[:size] = frame
        self._context[_MARK] = mark
        self._context[_CAME_BY] = came_by
        attributes.size = size
        attributes.room = ROOM + 256
        attributes.context_room = _WHOLE
        while self._call(self._number, syscall.PROG_TEST_RUN, self._at, self._bytes) < 0:
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "test run")
            attributes.size = size
        # The kernel returns the size of what came out in place of the room for it.
        return attributes.verdict, bytes(self._after[: attributes.room]), self._context_out[_MARK]
