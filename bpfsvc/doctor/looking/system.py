"""The kernel, the rights of this process, and the file systems the agent needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bpfsvc.datapath import probe, sockets, sysctls
from bpfsvc.datapath.pins import PinRoot, is_bpffs
from bpfsvc.doctor.facts import Places, System
from bpfsvc.errors import BpfsvcError, KernelError, SystemUnfit
from bpfsvc.privileges import require_privileges

_JIT = "net.core.bpf_jit_enable"
_SECONDS = 60
_PYTHONS = (sys.executable, "/usr/bin/python3")


def look_system() -> System:
    """Look at the machine."""
    unprivileged = ""
    try:
        require_privileges()
    except SystemUnfit as error:
        unprivileged = error.message
    return System(
        release=os.uname().release,
        unprivileged=unprivileged,
        missing=() if unprivileged else probe.missing(),
        tcx=not unprivileged and probe.has_tcx(),
        jit=_jit(),
        compiler=any(_has_bcc(python) for python in dict.fromkeys(_PYTHONS)),
    )


def look_places(root: PinRoot, cgroup_root: str | None) -> Places:
    """Look at the file systems; ``cgroup_root`` is the option as it was given."""
    place = root.path
    while not place.exists():
        place = place.parent
    cgroup, trouble, hint = "", "", ""
    try:
        cgroup = _cgroup(cgroup_root)
    except BpfsvcError as error:
        trouble, hint = error.message, error.hint
    return Places(
        pin_root=str(root.path),
        bpffs=is_bpffs(place),
        pin_writable=os.access(place, os.W_OK),
        cgroup=cgroup,
        no_cgroup=trouble,
        no_cgroup_hint=hint,
        # The kernel gives this file to every cgroup but the root of all.
        nested=bool(cgroup) and Path(cgroup, "cgroup.type").exists(),
        sysctls_writable=os.access("/proc/sys/net/ipv4/ip_local_reserved_ports", os.W_OK),
    )


def _jit() -> int | None:
    try:
        return int(sysctls.read(_JIT))
    except KernelError:
        return None


def _has_bcc(python: str) -> bool:
    """Ask in a process of its own: LLVM comes with it."""
    try:
        done = subprocess.run(
            [python, "-c", "import bcc"], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _cgroup(given: str | None) -> str:
    if given == "none":
        return ""
    if given is None:
        return str(sockets.find_cgroup_root())
    sockets.check_cgroup_root(Path(given))
    return given
