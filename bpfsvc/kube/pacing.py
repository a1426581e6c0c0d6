"""The times of following a resource, in one value so that tests can shorten them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bpfsvc.kube.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Times in seconds.

    * ``backoff``: waiting times after failures.
    * ``watch_seconds``: how long a watch is asked to last, drawn from this range, as client-go
      does, so that the watches of many nodes do not end together.
    * ``idle_seconds``: how long a watch may receive nothing. A server with bookmarks sends one a
      minute, so two were missed and half a minute went by. The watch is then resumed where it was,
      which costs little where a server sends no bookmarks at all.
    * ``list_idle_seconds``: the same while a list, or the first part of a WatchList, arrives.
    * ``probe_seconds``: until a resource that the server did not have is asked for again.
    """

    backoff: Callable[[], Backoff] = Backoff
    watch_seconds: tuple[float, float] = (300.0, 600.0)
    idle_seconds: float = 150.0
    list_idle_seconds: float = 30.0
    probe_seconds: float = 600.0
