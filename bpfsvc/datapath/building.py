"""A build for the place ``next``: its bytecode from the cache or from the compiler, then loaded.

Compiling takes a process of its own, because of the memory; loading does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bpfsvc.datapath.bytecode import Bytecode
from bpfsvc.datapath.cache import Cache
from bpfsvc.datapath.compiler import BCC_MISSING, Request
from bpfsvc.datapath.loader import load_build
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.datapath.source import Source
from bpfsvc.errors import BpfsvcError, KernelError, SystemUnfit

_COMPILE_SECONDS = 600  # 3 are usual; an emulated or throttled processor needs a hundred


def make_build(
    root: PinRoot, source: Source, previous: Pinned | None = None, cache: Cache | None = None
) -> None:
    """Pin the build of ``source`` under ``next``, with unchanged maps of ``previous``.

    What the kernel has taken is kept in ``cache``, and what it does not take is thrown out of it.
    """
    kept = cache.read() if cache else None
    if cache and kept:
        try:
            _load(root, kept, previous)
        except BpfsvcError as error:
            cache.discard(f"does not load: {error.message}")
        else:
            return
    compiled = compile_source(source)
    try:
        build = Bytecode.decode(compiled, source.digest)
    except ValueError as error:
        raise KernelError(f"what the compiler process gave {error}") from error
    _load(root, build, previous)
    if cache:
        cache.write(compiled)


def _load(root: PinRoot, build: Bytecode, previous: Pinned | None) -> None:
    try:
        load_build(build, root.next, previous)
    except BaseException:
        root.discard_next()
        raise


def compile_source(source: Source) -> bytes:
    """Compile in a process of its own; give the bytecode, encoded."""
    request = Request(
        text=source.text,
        digest=source.digest,
        defines=source.defines,
        include=str(source.root / "include"),
    )
    # bcc belongs to the distribution's Python, which need not be the agent's.
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        answer = _run_compiler(python, request)
        if isinstance(answer, bytes):
            return answer
        if answer.message != BCC_MISSING.message:
            raise answer
    raise BCC_MISSING


def _run_compiler(python: str, request: Request) -> bytes | BpfsvcError:
    """Run it under one Python; give the bytecode, or what went wrong."""
    try:
        result = subprocess.run(
            [python, "-m", "bpfsvc.datapath.compiler"],
            input=json.dumps(asdict(request)).encode(),
            capture_output=True,
            timeout=_COMPILE_SECONDS,
            cwd=Path(__file__).parent.parent.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return SystemUnfit(
            f"compiling the kernel programs took more than {_COMPILE_SECONDS} s",
            "look whether this machine is short of processor time or memory",
        )
    if result.returncode == 0:
        return result.stdout
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        return KernelError(f"the compiler process failed: {_last_line(result.stderr)}")
    return SystemUnfit(answer["error"], answer["hint"])


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
