"""The maps that metrics read at each scrape, opened once more: a :class:`Map` is for one thread."""

from __future__ import annotations

import os

from bpfsvc.datapath import conntrack
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.layout import MapLayout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.metrics.kernel_maps import EXPECTED, KernelMaps

_SIZED_BY_COUNTERS = "endpoints"
"""This map never has more entries than there are counters in use, and has their capacity."""


def open_metric_maps(pinned: Pinned) -> KernelMaps:
    """Return the maps of a build, for the threads of the metrics server."""
    layouts = pinned.layout.maps
    capacities = {
        name: layout.max_entries for name, layout in layouts.items() if _fills_up(name, layout)
    }
    return KernelMaps(
        build=pinned.layout.digest,
        counters=_open(pinned, "counters"),
        counter_names=layouts["counters"].value.names,
        refusals=_open(pinned, "refusals"),
        refusal_names=layouts["refusals"].value.names,
        failures=_open(pinned, "backend_failures"),
        failure_names=layouts["backend_failures"].value.names,
        connect_times=_open(pinned, "connect_times"),
        shortest_connect_us=1 << pinned.layout.constant("CONNECT_SHORTEST_SHIFT"),
        backend_counters=_open(pinned, "backend_counters"),
        conntrack=conntrack.use,
        capacities=capacities,
        sizes={name: _open(pinned, name).count for name in sorted(capacities.keys() - EXPECTED)},
    )


def _open(pinned: Pinned, name: str) -> Map:
    return Map(os.dup(pinned.map(name).fd), name)


def _fills_up(name: str, layout: MapLayout) -> bool:
    """True if entries are added to a map as objects are, so that it can become full."""
    if name == "backend_counters":
        return True
    return layout.type.endswith(("hash", "lpm_trie")) and name != _SIZED_BY_COUNTERS
