"""Units of time."""

from __future__ import annotations

from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
