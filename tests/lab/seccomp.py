"""``python seccomp.py PROFILE STRICT COMMAND ...`` runs a command under a profile for containers.

It does what a container's runtime does with the file, by libseccomp, which apt brings along. With
``strict``, a system call that the profile does not have ends the process, so that no code can hide
that it was refused; else the call fails as the profile says.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_MASKED_EQ = 7
_UNKNOWN = -1


class _Argument(ctypes.Structure):
    """``struct scmp_arg_cmp``."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def apply(profile: dict[str, Any], *, strict: bool) -> None:
    """Put this process under a profile, for good."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    default = _KILL_PROCESS if strict else _action(profile["defaultAction"], profile, "default")
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    for rule in profile["syscalls"]:
        action = ctypes.c_uint32(_action(rule["action"], rule, ""))
        arguments = [_argument(given) for given in rule.get("args", ())]
        array = (_Argument * len(arguments))(*arguments)
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == _UNKNOWN:
                raise ValueError(f"no architecture has a system call {name}")
            if number < 0:
                # Another architecture has it.
                continue
            _check(
                library.seccomp_rule_add_array(context, action, number, len(arguments), array),
                name,
            )
    _check(library.seccomp_load(context), "the profile")


def _action(name: str, of: dict[str, Any], prefix: str) -> int:
    if name == "SCMP_ACT_ALLOW":
        return _ALLOW
    assert name == "SCMP_ACT_ERRNO", name
    return _ERRNO | int(of["defaultErrnoRet" if prefix else "errnoRet"])


def _argument(given: dict[str, Any]) -> _Argument:
    assert given["op"] == "SCMP_CMP_MASKED_EQ", given
    return _Argument(given["index"], _MASKED_EQ, given["value"], given["valueTwo"])


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")


if __name__ == "__main__":
    apply(json.loads(Path(sys.argv[1]).read_text()), strict=sys.argv[2] == "strict")
    os.execvp(sys.argv[3], sys.argv[3:])
