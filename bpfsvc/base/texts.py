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


def change_text(
    what: str,
    endpoints: tuple[Sequence[str], Sequence[str]],
    frontends: tuple[Sequence[str], Sequence[str]],
    shown: int,
) -> str:
    """Return ``+1 -1 endpoints [+10.0.0.1:80 -10.0.0.2:80]``, and frontends likewise.

    ``what``: added, removed or changed; each pair: the new names, and the names that are gone.
    At most ``shown`` names of each kind are in the text.
    """
    parts = [
        "" if what == "changed" else what,
        _difference_text(*endpoints, "endpoint", shown),
        _difference_text(*frontends, "frontend", shown),
    ]
    return "; ".join(filter(None, parts)) or "policies changed"


def _difference_text(added: Sequence[str], removed: Sequence[str], noun: str, shown: int) -> str:
    signed = [f"+{name}" for name in added] + [f"-{name}" for name in removed]
    if not signed:
        return ""
    counts = [f"+{len(added)}"] * bool(added) + [f"-{len(removed)}"] * bool(removed)
    plural = "" if len(signed) == 1 else "s"
    return f"{' '.join(counts)} {noun}{plural} [{list_text(signed, shown, ' ')}]"
