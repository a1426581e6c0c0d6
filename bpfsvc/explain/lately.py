"""Connections to a Service that failed in the last minutes, beside the answer on a live node.

The answer says where a packet would go. Whether connections succeed there, only the counts of those
that were made can say.
"""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.address import endpoint_text
from bpfsvc.inspect.recent_failures import REASONS, refusal_text
from bpfsvc.model.answers import BackendFailures, FailureAnswer
from bpfsvc.services.plans.applied import Applied


def failures_lately(owner: Applied, answer: FailureAnswer) -> Iterator[str]:
    """Yield a text for each backend with failed connections, and for each reason of a refusal.

    The backends are all of the Service, in their order: a client may have got any of them.
    """
    failed = {failures.counters: failures for failures in answer.backends}
    within = f"in the last {answer.seconds} s"
    for backend, counters in owner.counters().items():
        if counters in failed and (text := _text(failed[counters])):
            yield f"connections to {endpoint_text(*backend)}: {text} {within}"
    for refusals in answer.refusals:
        if refusals.service == owner.service_id:
            for name, count in refusals.counts.items():
                yield f"first packets to this Service: {refusal_text(name, count)}, {within}"


def _text(failures: BackendFailures) -> str:
    counts = {reason: int(getattr(failures, reason)) for reason in REASONS}
    words = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
    return words and f"{words}, of {failures.connections}"
