"""The times that following a resource goes by, in one value so that tests can shorten them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bpfsvc.apiserver.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Times in seconds.

    * ``backoff``: waiting times after failures.
    * ``watch_seconds``: how long a watch is asked to last, drawn from this range, as client-go
      does, so that the watches of many nodes do not end together.
    * ``silence``: how long a watch may say nothing. A server with bookmarks sends one a minute, so
      two were missed and half a minute went by. The watch is then taken up again where it was,
      which costs little where a server sends no bookmarks at all.
    * ``silence_of_lists``: the same while a list, or the first part of a WatchList, arrives.
    * ``look_again``: until a thing that the server did not have is asked for again.
    """

    backoff: Callable[[], Backoff] = Backoff
    watch_seconds: tuple[float, float] = (300.0, 600.0)
    silence: float = 150.0
    silence_of_lists: float = 30.0
    look_again: float = 600.0
