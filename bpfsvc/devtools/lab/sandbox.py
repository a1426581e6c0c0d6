"""Namespaces in which a lab cannot affect the machine.

A lab makes interfaces, routes, sysctls, cgroups and pins. ``enter`` first moves the process into a
new network, mount and cgroup namespace, which has no interface but loopback, so no test packet and
no mistake can reach the machine. ``require`` raises an error anywhere else.

The process that calls ``enter`` stays outside as a supervisor and starts the work again inside.
It survives a ``kill -9`` of the work, ends the processes that the work has left, and removes the
sandbox's cgroup, the only trace in a tree shared with the machine. Mounts and namespaces vanish
with the processes. (Two empty directories, ``/run/netns`` and ``/run/bpfsvc-lab``, stay: removing
a directory would unmount another sandbox's mount on it.)

``python -m bpfsvc.devtools.lab.sandbox -- COMMAND ...`` runs any command inside.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bpfsvc.base import syscalls
from bpfsvc.base.errors import SystemUnfit, UsageError
from bpfsvc.devtools.lab.patience import stretched

ROOT = Path("/run/bpfsvc-lab")
BPF_ROOT = ROOT / "bpf"
CGROUP_ROOT = ROOT / "cgroup"
NETNS_ROOT = Path("/run/netns")
COMPILED = Path(os.environ.get("BPFSVC_LAB_COMPILED") or ROOT / "cache")
"""Compiled programs. ``make test`` names one directory for the sandboxes of all its processes."""

_MARKER = ROOT / "sandbox"
_OWN_NETNS = Path("/proc/thread-self/ns/net")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PATIENCE = 5.0  # seconds for killed processes to leave the cgroup


def inside() -> bool:
    """True if the calling thread is in the network namespace of a sandbox.

    The sandbox's mounts hold a file that names its network namespace. (A comparison with
    the namespace of process 1 would be simpler, but not every root may look at process 1.)
    """
    try:
        marked = int(_MARKER.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return _OWN_NETNS.stat().st_ino == marked


def require() -> None:
    """Raise ``SystemUnfit`` unless called as root inside a sandbox."""
    if os.geteuid() != 0:
        raise SystemUnfit("a lab needs root", "run the command as root")
    if not inside():
        raise SystemUnfit(
            "a lab is built only in a private network namespace, and this is not one",
            "put 'python -m bpfsvc.devtools.lab.sandbox --' before the command",
        )


def enter(command: Sequence[str] | None = None) -> None:
    """Run ``command`` (default: this process again, from its start) inside a sandbox.

    Returns only if it is inside already and there is no ``command``. Otherwise this process becomes
    the supervisor, and ends with the status of the work (128 + signal number if it was killed).
    Call it before anything is buffered, threaded or opened. ``SystemUnfit`` without root.
    """
    if os.geteuid() != 0:
        raise SystemUnfit("a sandbox needs root", "run the command as root")
    if inside():
        if command is not None:
            _execute(command)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    cgroup = _private_mounts()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() == supervisor:
            _move_in(cgroup)
            # What a script runs in its background ignores SIGINT, and so would all that it starts.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _execute([sys.executable, *sys.orig_argv[1:]] if command is None else command)
        os._exit(1)
    os._exit(_supervise(child, cgroup))


def _private_mounts() -> Path:
    """Mount what the sandbox needs in a new mount namespace; return the new cgroup."""
    for directory in (ROOT, NETNS_ROOT):
        directory.mkdir(parents=True, exist_ok=True)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", str(ROOT), "tmpfs")
    syscalls.mount("tmpfs", str(NETNS_ROOT), "tmpfs")
    for directory, filesystem in ((BPF_ROOT, "bpf"), (CGROUP_ROOT, "cgroup2")):
        directory.mkdir()
        syscalls.mount(filesystem, str(directory), filesystem)
    line = next(
        row for row in Path("/proc/self/cgroup").read_text().splitlines() if row.startswith("0::")
    )
    parent = CGROUP_ROOT / line.removeprefix("0::/")
    _sweep(parent)
    cgroup = parent / f"bpfsvc-lab-{os.getpid()}"
    cgroup.mkdir()
    return cgroup


def _sweep(parent: Path) -> None:
    """Remove empty cgroups that sandboxes with a killed supervisor have left."""
    for stale in parent.glob("bpfsvc-lab-*"):
        if Path("/proc", stale.name.rpartition("-")[2]).exists():
            continue
        try:
            _remove_cgroup(stale)
        except OSError as error:
            # Another process is still in it (not ours to end), or another sweep was faster.
            if error.errno not in (errno.EBUSY, errno.ENOENT):
                raise


def _move_in(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("0")
    syscalls.unshare(syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWCGROUP)
    # Mounted again from within the cgroup namespace, its root is the sandbox's cgroup: the
    # machine's root cgroup cannot even be named from here.
    syscalls.unmount(str(CGROUP_ROOT))
    syscalls.mount("cgroup2", str(CGROUP_ROOT), "cgroup2")
    # An agent that is started without --cgroup-root takes the first cgroup2 that it sees.
    for mount_point in _machine_cgroups():
        syscalls.mount(str(CGROUP_ROOT), mount_point, None, syscalls.MS_BIND)
    loopback_up()
    _MARKER.write_text(str(_OWN_NETNS.stat().st_ino))


def _machine_cgroups() -> list[str]:
    """Return where cgroup2 is mounted, but for the sandbox's own."""
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [path for _, path, kind, *_ in mounts if kind == "cgroup2" and path != str(CGROUP_ROOT)]


def loopback_up() -> None:
    """Bring up ``lo`` in the calling thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16xH", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[0]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _execute(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


def _supervise(child: int, cgroup: Path) -> int:
    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    # A terminal sends SIGINT to the whole group: the work has received it already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the process id may now belong to another process
    code = os.waitstatus_to_exitcode(status)
    try:
        end_members(cgroup)
        _remove_cgroup(cgroup)
    except OSError as error:
        sys.stderr.write(f"sandbox: {cgroup.name} could not be removed: {error}\n")
    return code if code >= 0 else 128 - code


def members(cgroup: Path) -> Iterator[int]:
    """Return the ids of the processes in ``cgroup`` and below."""
    for file in cgroup.rglob("cgroup.procs"):
        yield from (int(line) for line in file.read_text().split())


def end_members(cgroup: Path) -> None:
    """Kill the processes in ``cgroup`` one by one; ``OSError`` if one does not end."""
    deadline = time.monotonic() + stretched(_PATIENCE)
    while left := list(members(cgroup)):
        if time.monotonic() > deadline:
            raise OSError(f"processes {left} do not end")
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)


def _remove_cgroup(cgroup: Path) -> None:
    for directory in (*sorted(cgroup.rglob("*/"), reverse=True), cgroup):
        _remove_directory(directory)


def _remove_directory(directory: Path) -> None:
    """Remove a cgroup; for a moment after its last process has ended it may still be busy."""
    deadline = time.monotonic() + stretched(_PATIENCE)
    while True:
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return


def main(arguments: Sequence[str]) -> None:
    """Run ``-- COMMAND ...`` inside a sandbox."""
    if len(arguments) < 2 or arguments[0] != "--":
        raise UsageError("no command", "python -m bpfsvc.devtools.lab.sandbox -- COMMAND ...")
    enter(arguments[1:])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (SystemUnfit, UsageError) as failure:
        sys.stderr.write(f"sandbox: {failure}\n")
        sys.exit(failure.exit_code)
