"""The load that the benchmark puts on a way through the lab, and the server at its end.

A small C program, compiled where it runs: ready-made tools measure neither short connections that
the client closes, with a latency and CPU time for each, nor datagrams from unconnected sockets, in
slices of a fraction of a second; and with sixteen clients at a time Python would be most of what is
measured. See ``program`` for what it does, ``outcome`` for what it reports, ``ports`` for when a
source port may come again.
"""

from __future__ import annotations

from bpfsvc.bench.load.outcome import Outcome
from bpfsvc.bench.load.program import (
    BLOCK,
    BULK,
    FLOWS,
    KINDS,
    Client,
    LoadFailed,
    Seen,
    Server,
    build,
)

__all__ = [
    "BLOCK",
    "BULK",
    "FLOWS",
    "KINDS",
    "Client",
    "LoadFailed",
    "Outcome",
    "Seen",
    "Server",
    "build",
]
