"""Bytecode that was compiled on this node, kept in files for the next boot.

A file is written beside its place and renamed into it, and carries a checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bpfsvc.base.private_file import open_private
from bpfsvc.base.trusted_files import distrust, read
from bpfsvc.datapath.loader.bytecode import Bytecode

SUFFIX = ".bytecode"

_KEPT = 3
"""Builds: the one in force, and those that one may want to go back to."""


class Unusable(Exception):
    """Bytecode is there and cannot be used; the message names the file and has the reason."""


class BytecodeCache:
    """The file of what was compiled of some sources. A problem with it is no error."""

    def __init__(self, directory: Path, digest: str, log: Callable[[str], None]) -> None:
        """Keep the build of the sources ``digest`` in ``directory``, which need not exist.

        ``log`` gets one line if nothing can be kept there.
        """
        self.path = directory.resolve() / f"{digest}{SUFFIX}"
        self._digest = digest
        self._log = log
        self._usable = True

    def read(self) -> Bytecode | None:
        """Return the kept build; None if there is none. Raise :class:`Unusable`."""
        try:
            self._check_directory()
            if self._usable:
                return Bytecode.decode(read(self.path), self._digest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unusable(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise Unusable(f"{self.path} {error}") from error
        return None

    def discard(self) -> None:
        """Remove the file, because it cannot be used."""
        # If it cannot be removed, it cannot be written either; write() logs that.
        with suppress(OSError):
            self.path.unlink()

    def write(self, build: bytes) -> None:
        """Keep the build for the next boot."""
        if not self._usable:
            return
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_directory()
            if not self._usable:
                return
            with open(fresh, "wb", opener=_private) as file:
                file.write(build)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
            self._forget_oldest()
        except OSError as error:
            self._log(f"compiled programs are not kept: {self.path}: {error.strerror}")

    def _check_directory(self) -> None:
        reason = distrust(self.path.parent)
        if reason:
            self._usable = False
            self._log(f"compiled programs are not kept: {reason}")

    def _forget_oldest(self) -> None:
        files = self.path.parent.glob(f"*{SUFFIX}")
        others = sorted((file.stat().st_mtime, file) for file in files if file != self.path)
        for _, file in others[: 1 - _KEPT]:
            file.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return open_private(path, flags | os.O_NOFOLLOW)
