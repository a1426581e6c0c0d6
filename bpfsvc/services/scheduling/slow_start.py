"""New endpoints get a growing share of connections (``bpfsvc.io/slow-start-seconds``).

An endpoint is new when it is ready for the first time and its pod was not among the Service's ready
endpoints before. Pods are known by their UID, so a pod that has the address of a former one is new,
and one that was not ready for a while is not. What is there when a Service is looked at for the
first time is not new: so a restart of the agent changes nothing.

Pure: the agent hands the time in, and asks which Services are to be planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bpfsvc.model import EndpointSlice
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Backend
from bpfsvc.services.scheduling.schedulers import Scheduler

STEPS = 10
"""Into so many steps the time is divided."""

FULL = 2 * STEPS
"""The share of an endpoint that is not new. In each step a new one has the share that a straight
line from 0 to this has in the middle of the step: 1, 3, 5, ... 19."""

Shares = Mapping[bytes, int]
"""Packed address of a new endpoint -> its share."""

NO_SHARES: Shares = {}

GRADUAL = ("random", "rr", "wrr", "mh")
"""Schedulers by which a share can grow. With ``sh``, each step would move most clients; ``dh`` has
no weights."""

_SETTLED = float("-inf")


class _Known(NamedTuple):
    """The pods of a Service: since when each is ready, and since when some are not listed."""

    since: dict[bytes, float]
    gone: dict[bytes, float]
    next_step: float


class SlowStarts:
    """The pods of all Services that have the annotation."""

    def __init__(self) -> None:
        self._known: dict[ServiceKey, _Known] = {}

    def forget(self, key: ServiceKey) -> None:
        """Forget a Service that has no such annotation any more."""
        self._known.pop(key, None)

    def read(
        self, key: ServiceKey, seconds: int, slices: Iterable[EndpointSlice], now: float
    ) -> Shares:
        """Return the shares of the new endpoints of a Service; empty if none is new."""
        listed = [identity for part in slices if part.is_proxied for identity in part.identities()]
        pods = {pod for _, _, pod in listed}
        before = self._known.get(key)
        if before is None:
            self._known[key] = _Known(dict.fromkeys(pods, _SETTLED), {}, float("inf"))
            return NO_SHARES
        ready = (pod for _, traits, pod in listed if traits.ready)
        since = dict.fromkeys(ready, now) | before.since
        # Remembered for a while: a slice may lose an endpoint before another one gets it.
        gone = {pod: before.gone.get(pod, now) for pod in since.keys() - pods}
        over = {pod for pod, at in gone.items() if now - at > seconds}
        since = {pod: at for pod, at in since.items() if pod not in over}
        gone = {pod: at for pod, at in gone.items() if pod not in over}
        steps = {
            pod: int((now - at) * STEPS / seconds)
            for pod, at in since.items()
            if now - at < seconds and pod in pods
        }
        next_step = min(
            (since[pod] + (step + 1) * seconds / STEPS for pod, step in steps.items()),
            default=float("inf"),
        )
        self._known[key] = _Known(since, gone, next_step)
        return {address: 2 * steps[pod] + 1 for address, _, pod in listed if pod in steps}

    def due(self, now: float) -> set[ServiceKey]:
        """Return the Services in which the share of an endpoint grows now."""
        return {key for key, known in self._known.items() if known.next_step <= now}


def gradual(
    scheduler: Scheduler, shares: Shares, weighted: Iterable[tuple[Backend, int]]
) -> tuple[Scheduler, list[int]]:
    """Return the scheduler and the weights by which new endpoints have their shares.

    Without new endpoints among them, and where shares cannot grow, these are the usual ones. Taking
    turns is then taking turns by weight.
    """
    pairs = list(weighted)
    if scheduler.name not in GRADUAL or not any(backend.address in shares for backend, _ in pairs):
        return scheduler, [weight for _, weight in pairs]
    if scheduler.name == "rr":
        scheduler = Scheduler("wrr")
        pairs = [(backend, min(weight, 1)) for backend, weight in pairs]
    return scheduler, [weight * shares.get(backend.address, FULL) for backend, weight in pairs]
