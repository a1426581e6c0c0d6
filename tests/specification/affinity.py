"""Which backend a client returns to (section 9)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.specification.objects import Raw

DEFAULT_SECONDS = 10800


def affinity_seconds(service: Raw) -> int:
    """Section 9: lifetime of a remembered backend; 0 without session affinity."""
    spec = service["spec"]
    if spec.get("sessionAffinity") != "ClientIP":
        return 0
    by_client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    return by_client.get("timeoutSeconds") or DEFAULT_SECONDS


def honoured(remembered: Iterable[str], eligible: Iterable[str]) -> str | None:
    """Section 9: the first remembered backend that is eligible now; None: choose again."""
    return min(set(remembered) & set(eligible), default=None)
