"""Small texts that several rooms write: numbers of things, and lists that are cut short."""

from __future__ import annotations

from collections.abc import Sequence

SERVER_NAME = "bpfsvc"
"""The header ``Server`` of an agent's responses, which tells them from kube-proxy's."""

SHADOW_PATH = "/bpfsvc/shadow"
"""The page of an agent in shadow mode that ``bpfsvc status`` reads."""


def count_text(number: int, singular: str, plural: str = "") -> str:
    """Return ``1 rule`` or ``3 rules``; ``plural``: where it is not ``singular`` with an s."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def list_text(names: Sequence[str], shown: int, separator: str = ", ") -> str:
    """Return the first ``shown`` names, followed by ``and 6 more`` if there are more."""
    more = len(names) - shown
    return separator.join(names[:shown]) + (f" and {more} more" if more > 0 else "")
