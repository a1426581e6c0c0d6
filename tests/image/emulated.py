"""Run a command in whose sight programs of another architecture run here, by qemu.

``python -m tests.image.emulated MACHINE QEMU COMMAND...``, as root. ``MACHINE``: as ``uname -m`` of
the other architecture says it; ``QEMU``: a statically linked qemu for its programs. The command
runs in a user namespace, in which every user is itself: such a namespace has formats of programs
of its own (Linux 6.7), so this machine's stay as they are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bpfsvc.base import syscalls

_ELF_MACHINES = {"aarch64": 0xB7}
"""Of ``elf.h``."""

_EVERYBODY = f"0 0 {(1 << 32) - 1}"
_FORMATS = Path("/proc/sys/fs/binfmt_misc")
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000


def main() -> None:
    """Enter the namespaces and become the command; its exit status is this program's."""
    machine, qemu, *command = sys.argv[1:]
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    child = os.fork()
    if child:
        os.close(ready_write)
        os.read(ready_read, 1)
        for kind in ("uid", "gid"):
            Path(f"/proc/{child}/{kind}_map").write_text(_EVERYBODY)
        os.write(mapped_write, b"1")
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    syscalls.unshare(_CLONE_NEWUSER | _CLONE_NEWNS)
    os.write(ready_write, b"1")
    os.read(mapped_read, 1)
    syscalls.mount("binfmt_misc", str(_FORMATS), "binfmt_misc")
    (_FORMATS / "register").write_bytes(_format(machine, qemu))
    os.execvp(command[0], command)


def _format(machine: str, qemu: str) -> bytes:
    """Return the line for executable files of a little-endian machine with 64 bits.

    ``F``: qemu is opened now, so that it runs below other roots, too.
    """
    magic = b"\\x7fELF\\x02\\x01\\x01" + b"\\x00" * 9
    magic += b"\\x02\\x00" + f"\\x{_ELF_MACHINES[machine]:02x}\\x00".encode()
    mask = b"\\xff" * 7 + b"\\x00" + b"\\xff" * 8 + b"\\xfe\\xff\\xff\\xff"
    return b":qemu-%s:M::%s:%s:%s:F" % (machine.encode(), magic, mask, qemu.encode())


if __name__ == "__main__":
    main()
