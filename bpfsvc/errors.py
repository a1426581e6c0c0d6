"""The errors that people are meant to read.

::

    BpfsvcError          one line that says what is wrong, and a hint that says the way out
    ├── UsageError       the command line or a setting is wrong (exit status 2)
    ├── SystemUnfit      this machine lacks something
    ├── KernelError      the kernel refused something
    │   └── MapFull      a map has no room left
    └── ...              narrower ones stand beside the code that raises them

Commands print them as one line or two and exit with ``exit_code``; a traceback needs ``--debug``.
"""

from __future__ import annotations


class BpfsvcError(Exception):
    """Something a person can mend. ``hint`` is the way out, in the imperative."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(BpfsvcError):
    """A flag, an argument or a setting has a value that cannot be used."""

    exit_code = 2


class SystemUnfit(BpfsvcError):
    """This machine lacks something bpfsvc needs: a capability, bcc, bpffs, a kernel feature."""


class KernelError(BpfsvcError):
    """The kernel refused something that should have worked."""


class MapFull(KernelError):
    """A map has no room for a row. Names the map and the flag that enlarges it."""
