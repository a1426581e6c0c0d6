"""Errors for people.

::

    BpfsvcError          one line about the fault, and a hint about what to do
    ├── UsageError       the command line or the configuration is wrong (exit status 2)
    ├── SystemUnfit      this machine lacks something
    ├── KernelError      the kernel refused something
    │   └── MapFull      a map has no room left
    └── ...              narrower ones are defined where they are raised

Commands print them as one line or two and exit with ``exit_code``; a traceback needs ``--debug``.
"""

from __future__ import annotations


class BpfsvcError(Exception):
    """An error that a person can fix. ``hint`` says how, in the imperative."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(BpfsvcError):
    """A flag, an argument or a field has a value that cannot be used."""

    exit_code = 2


class SystemUnfit(BpfsvcError):
    """This machine lacks something that bpfsvc needs, such as a capability, bcc or bpffs."""


class Interrupted(BpfsvcError):
    """What was being done is not needed any more: the agent was asked to stop."""


class KernelError(BpfsvcError):
    """The kernel refused something that should have worked."""


class MapFull(KernelError):
    """A map has no room. The message names the map and what gives it room.

    ``map_name``: a map of the kernel that refused an entry.
    """

    def __init__(self, message: str, hint: str = "", map_name: str = "") -> None:
        super().__init__(message, hint)
        self.map_name = map_name
