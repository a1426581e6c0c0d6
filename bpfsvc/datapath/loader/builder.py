"""Make the build under ``next``: load bytecode that is there, or else compile it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from bpfsvc.base.errors import BpfsvcError, KernelError, SystemUnfit
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache, Unusable
from bpfsvc.datapath.loader.compiler import is_missing_bcc
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.loader import load_build
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import CSource
from bpfsvc.datapath.maps.pins import Pinned, PinRoot


def make_build(
    root: PinRoot,
    source: CSource,
    log: Callable[[str], None],
    previous: Pinned | None = None,
    cache: BytecodeCache | None = None,
    shipped: ShippedPrograms | None = None,
    usable: Callable[[], None] = lambda: None,
    unwanted: Callable[[], bool] = lambda: False,
) -> None:
    """Pin the build of ``source`` under ``next``, with unchanged maps of ``previous``.

    What this node compiled and kept in ``cache`` comes first: it does so only where ``shipped``
    does not fit. Bytecode that the kernel refuses is removed from the cache. If any was not used,
    one line says why. ``usable``: see :func:`load_build`; from that call on the maps stay, also if
    other programs have to be compiled. ``unwanted``: see :func:`compile_source`.
    """
    loading = _Loading(root, previous, usable)
    of_kernel = features.of_this_kernel().numbers()
    reasons: list[str] = []
    refused: BpfsvcError | None = None
    for store in (cache, shipped):
        if store is None:
            continue
        try:
            bytecode = store.read()
            if bytecode is None:
                continue
            loading.load(bytecode.sized(source, of_kernel))
        except Unusable as error:
            reasons.append(str(error))
        except BpfsvcError as error:
            refused = error
            reasons.append(f"{store.path} does not load: {error.message}")
        else:
            if reasons:
                log(f"compiled programs are not used: {'; '.join(reasons)}")
            return
        store.discard()
    if reasons:
        log(f"compiling anew: {'; '.join(reasons)}")
    compiled = _compiled(source, reasons, refused, unwanted)
    try:
        build = Bytecode.decode(compiled, source.code_digest)
    except ValueError as error:
        raise KernelError(f"the output of the compiler process {error}") from error
    loading.load(build.sized(source, of_kernel))
    if cache:
        cache.write(compiled)


def _compiled(
    source: CSource,
    reasons: list[str],
    refused: BpfsvcError | None,
    unwanted: Callable[[], bool],
) -> bytes:
    """Compile; where there is no compiler, the error says why it would have been needed."""
    try:
        return compile_source(source, unwanted)
    except SystemUnfit as error:
        if refused and is_missing_bcc(error):
            raise refused from error
        if reasons and is_missing_bcc(error):
            raise SystemUnfit(
                f"the kernel programs have to be compiled, because {'; '.join(reasons)}; but"
                f" {error.message}",
                "use the image of this version whose name ends with -compiler, or a checkout or"
                f" package on a node with bcc: {error.hint}",
            ) from error
        raise


class _Loading:
    """Attempts to load a build under ``next``; what a failed one has made is removed."""

    def __init__(self, root: PinRoot, previous: Pinned | None, usable: Callable[[], None]) -> None:
        self._root = root
        self._previous = previous
        self._usable = usable
        self._in_use = False

    def load(self, build: Bytecode) -> None:
        try:
            load_build(build, self._root.next, self._previous, self._hand_over)
        except BaseException:
            if self._in_use:
                shutil.rmtree(self._root.next / "programs", ignore_errors=True)
            else:
                self._root.discard_next()
            raise

    def _hand_over(self) -> None:
        self._in_use = True
        self._usable()
