"""Run the compiler: a process of its own, because of the memory; loading needs none."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, KernelError, SystemUnfit
from bpfsvc.datapath.loader.compiler import BCC_MISSING, CompileRequest, is_missing_bcc
from bpfsvc.datapath.loader.source import CSource

_COMPILE_SECONDS = 1800  # 5 are usual; emulated processors that are shared have needed 700


def compile_source(source: CSource) -> bytes:
    """Compile in a process of its own; return the bytecode, encoded."""
    request = CompileRequest(
        text=source.text,
        digest=source.code_digest,
        defines=source.defines,
        include=str(source.root / "include"),
    )
    # bcc belongs to the distribution's Python, which need not be the agent's.
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        answer = _run_compiler(python, request)
        if isinstance(answer, bytes):
            return answer
        if not is_missing_bcc(answer):
            raise answer
    raise BCC_MISSING


def _run_compiler(python: str, request: CompileRequest) -> bytes | BpfsvcError:
    """Run it under one Python; return the bytecode, or the error."""
    try:
        result = subprocess.run(
            [python, "-m", "bpfsvc.datapath.loader.compiler"],
            input=json.dumps(asdict(request)).encode(),
            capture_output=True,
            timeout=_COMPILE_SECONDS,
            cwd=Path(__file__).parents[3],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return SystemUnfit(
            f"compiling the kernel programs took more than {_COMPILE_SECONDS} s",
            "check whether this machine is short of processor time or memory",
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
