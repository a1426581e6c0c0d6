"""Read a view from the maps."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.services.choice import NodeAddresses, Wanted, choose
from bpfsvc.inspect.services.ports import collect
from bpfsvc.inspect.services.socket_counts import SocketCounts
from bpfsvc.inspect.services.traffic import read_traffic
from bpfsvc.inspect.services.view import View
from bpfsvc.model.answers import FailureAnswer


def look(
    reader: Reader,
    wanted: Sequence[Wanted] = (),
    namespace: str = "",
    *,
    required: bool = True,
    traffic: bool = False,
    failures: FailureAnswer | None = None,
) -> View:
    """Read the maps once.

    ``required``: raise ``UnknownService`` for an argument that means no service port. ``failures``:
    what the agent says about failures, if it is asked and answers.
    """
    node_addresses = NodeAddresses(reader)
    with _no_garbage():
        sockets = SocketCounts(reader)
        all_ports = collect(reader, sockets)
        ports = choose(all_ports, wanted, namespace, node_addresses, required=required)
        counted = read_traffic(reader, ports) if traffic else None
    recent = {known.counters: known for known in failures.backends} if failures else None
    return View(ports, sockets.socket_lb, counted, listed=sockets.listed, recent=recent)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect no garbage while many objects are made that all stay: that takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
