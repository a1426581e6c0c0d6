"""What labs, and places where something is measured, have in common: set up, used, taken down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class Scaffold(ABC):
    """A context manager: set up within; taken down afterwards, or as far as it came if that fails.

    Whatever is to be taken down belongs to ``_stack``.
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
        """Set it up."""
