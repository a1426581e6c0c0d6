"""What happens to connections when their endpoint leaves its Service."""

from __future__ import annotations

from collections.abc import Iterator
from socket import IPPROTO_TCP

from bpfsvc.explain.answer import Outcome
from bpfsvc.services.scheduling.removal import OnRemoval


def removal_reasons(outcome: Outcome, drain_seconds: int | None) -> Iterator[str]:
    """Yield what happens to TCP connections, unless they stay, as with kube-proxy.

    ``drain_seconds``: how long connections stay with ``drain``; None if that is not known.
    """
    kind = OnRemoval(outcome.policies.removal)
    if outcome.frontend.protocol != IPPROTO_TCP or kind == OnRemoval.KEEP:
        return
    if kind == OnRemoval.RESET:
        when = "at once"
    elif drain_seconds is None:
        when = "after the time that bpfsvc.io/drain-seconds says"
    else:
        when = f"after {drain_seconds} s"
    yield (
        "when an endpoint leaves the Service, connections to it are reset"
        f" {when} (bpfsvc.io/on-removal: {kind.name.lower()})"
    )
