"""A directory of manifests, read once."""

from __future__ import annotations

import threading
from pathlib import Path

from bpfsvc.cluster import Cluster
from bpfsvc.errors import BpfsvcError
from bpfsvc.sources.manifests import Manifests


def read_cluster(directory: Path, node_name: str) -> Cluster:
    """Give the objects of a directory; raise :class:`BpfsvcError` if a file is broken."""
    cluster = Cluster(node_name)
    stop = threading.Event()
    for batch in Manifests(directory).watch(stop):
        if batch.problems:
            raise BpfsvcError(
                "; ".join(map(str, batch.problems)), "mend the file, or ask the agent's maps"
            )
        cluster.apply(batch.puts, batch.gone)
        if batch.complete:
            break
    stop.set()
    return cluster
