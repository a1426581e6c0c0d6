"""Files that only their owner can read and write."""

from __future__ import annotations

import os


def open_private(path: str, flags: int) -> int:
    """Return a descriptor of a file, made with mode 0600 if need be: an opener for ``open()``."""
    return os.open(path, flags, 0o600)
