"""The base of labs and testbeds: built on entry, removed on exit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class Environment(ABC):
    """A context manager that builds itself on entry and removes all its parts on exit.

    All that has to be removed is entered into ``_stack``, so a partial build is removed, too.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _build(self) -> None:
        """Build the environment."""
