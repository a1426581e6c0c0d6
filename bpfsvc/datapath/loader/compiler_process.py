"""Run the compiler: a process of its own, because of the memory; loading needs none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, Interrupted, KernelError, SystemUnfit
from bpfsvc.datapath.loader.compiler import BCC_MISSING, CompileRequest, is_missing_bcc
from bpfsvc.datapath.loader.source import CSource

_COMPILE_SECONDS = 1800  # 5 are usual; emulated processors that are shared have needed 700
_LOOK_SECONDS = 0.1
"""How often it is asked whether the result is still wanted."""


def compile_source(source: CSource, unwanted: Callable[[], bool] = lambda: False) -> bytes:
    """Compile in a process of its own; return the bytecode, encoded.

    ``unwanted()``: True if the bytecode is not needed any more. Then the compiler is killed, and
    ``Interrupted`` is raised.
    """
    request = CompileRequest(
        text=source.text,
        digest=source.code_digest,
        defines=source.defines,
        include=str(source.root / "include"),
    )
    # bcc belongs to the distribution's Python, which need not be the agent's.
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        answer = _run_compiler(python, request, unwanted)
        if isinstance(answer, bytes):
            return answer
        if not is_missing_bcc(answer):
            raise answer
    raise BCC_MISSING


def _run_compiler(
    python: str, request: CompileRequest, unwanted: Callable[[], bool]
) -> bytes | BpfsvcError:
    """Run it under one Python; return the bytecode, or the error."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [python, "-m", "bpfsvc.datapath.loader.compiler"],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=Path(__file__).parents[3],
    ) as process:
        ended = threading.Event()
        watcher = threading.Thread(target=_kill_unwanted, args=(process, unwanted, ended))
        watcher.start()
        try:
            asked = json.dumps(asdict(request)).encode()
            output, errors = process.communicate(asked, timeout=_COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return SystemUnfit(
                f"compiling the kernel programs took more than {_COMPILE_SECONDS} s",
                "check whether this machine is short of processor time or memory",
            )
        except BaseException:
            process.kill()
            raise
        finally:
            ended.set()
            watcher.join()
    if process.returncode == -signal.SIGKILL and unwanted():
        raise Interrupted("the kernel programs are not needed any more")
    if process.returncode == 0:
        return output
    try:
        answer = json.loads(output)
    except ValueError:
        return KernelError(f"the compiler process failed: {_last_line(errors)}")
    return SystemUnfit(answer["error"], answer["hint"])


def _kill_unwanted(
    process: subprocess.Popen[bytes], unwanted: Callable[[], bool], ended: threading.Event
) -> None:
    """Kill a process if its result is not needed any more before it has ended."""
    while not ended.wait(_LOOK_SECONDS):
        if unwanted():
            process.kill()
            return


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
