"""A node of packet tests whose programs have the clock and the random numbers of a history."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

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
from tests.packets.builds import FIELD
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


class _Relaid(CSource):
    """The same sources with one more field in a connection, in front of others."""

    def __init__(self, source: CSource) -> None:
        super().__init__(source.sizes, source.root, source.main)
        self._text = source.text

    @cached_property
    def text(self) -> str:
        _, old, new = FIELD
        assert self._text.count(old) == 1
        return self._text.replace(old, new)


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
        self._source = source
        self._load(source, None)
        self.root.promote_next()
        self.use(Pinned(self.root.current))

    def load_other(self) -> Pinned:
        """Load a build beside the active one. Its connections have another layout."""
        self._load(_Relaid(self._source), self.pinned)
        return Pinned(self.root.next)

    def _load(self, source: CSource, previous: Pinned | None) -> None:
        build = compiled(source).sized(source, features.of_this_kernel().numbers())
        build = self.controls.controlled(self._change(build))
        load_build(build, self.root.next, previous)

    def use(self, pinned: Pinned) -> None:
        """Have a build be the active one."""
        self._use(Installation(self.root, pinned, None, fresh=False))
