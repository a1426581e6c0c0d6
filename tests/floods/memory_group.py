"""A memory cgroup of the sandbox, whose limit a test moves.

Its processes, and the maps that they create, may take so much memory together. It is of cgroup v1:
with cgroup2 a sandbox gets the memory controller only from a machine that gives it away.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.base import syscalls
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import wait


class MemoryGroup:
    """The cgroup in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def command(self) -> Sequence[str]:
        """The beginning of a command that runs the rest of it in the group."""
        entering = f'echo $$ >{self._directory}/cgroup.procs && exec "$@"'
        return ("sh", "-c", entering, "sh")

    @property
    def used(self) -> int:
        """Bytes in use now."""
        return int(self._read("memory.usage_in_bytes"))

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed because there was no room."""
        counts = dict(line.split() for line in self._read("memory.oom_control").splitlines())
        return int(counts["oom_kill"])

    def leave_room(self, size: int) -> None:
        """Let so many bytes more be used than now."""

        def is_limited() -> bool:
            try:
                # Cached files would make room as soon as it is wanted.
                (self._directory / "memory.force_empty").write_text("0")
                self._limit(self.used + size)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                return False  # meanwhile more is in use
            return True

        wait(is_limited, "the group has its limit")

    def lift(self) -> None:
        """Let any number of bytes be used."""
        self._limit(-1)

    def _limit(self, size: int) -> None:
        (self._directory / "memory.limit_in_bytes").write_text(str(size))

    def _read(self, name: str) -> str:
        return (self._directory / name).read_text()


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Make a group without a limit; its processes must have ended when the block ends.

    ``OSError`` if this machine has no memory controller of cgroup v1.
    """
    sandbox.require()
    # Mounted here, its root is the group that the sandbox was started in.
    root = sandbox.ROOT / "memory"
    root.mkdir()
    syscalls.mount("cgroup", str(root), "cgroup", options="memory")
    directory = root / f"bpfsvc-lab-{os.getpid()}"
    directory.mkdir()
    try:
        yield MemoryGroup(directory)
    finally:
        wait(lambda: not (directory / "cgroup.procs").read_text(), "the group is empty")
        directory.rmdir()
        syscalls.unmount(str(root))
        root.rmdir()
