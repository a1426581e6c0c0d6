"""Which view shows which map, and the names that ``maps dump`` accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bpfsvc.base.errors import UsageError
from bpfsvc.base.near_misses import meant_text
from bpfsvc.datapath.maps.backend_loads import BackendLoad
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.localities import KEPT
from bpfsvc.datapath.maps.registry import Role, map_info
from bpfsvc.inspect.entries import is_known
from bpfsvc.inspect.fields import lacks
from bpfsvc.inspect.maps import clients, connections, namespaces, node, schedulers, services
from bpfsvc.inspect.maps.generic import generic
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records
from bpfsvc.services.plans.registry import (
    BACKENDS,
    ECHO_ADDRESSES,
    ENDPOINTS,
    FRONTENDS,
    POSITIONS,
    SERVICES,
    SOURCE_RANGES,
)
from bpfsvc.services.scheduling.maps import CANDIDATES, SCHEDULE_TABLES, SPILLS
from bpfsvc.services.service_map import ServiceMap


@dataclass(frozen=True, slots=True)
class _View:
    """The function that makes records, and what it needs of a build's layout.

    * ``reads``: maps of Services.
    * ``needs``: fields of the keys and of the values of other maps, by the name of the map.
    * ``keys``: how many columns say which row it is.
    """

    make: Callable[[Reader], Records]
    reads: tuple[ServiceMap[Any], ...] = ()
    needs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    keys: int = 1

    def fits(self, layout: Layout) -> bool:
        """True if this view can read maps of such a layout."""
        return all(is_known(service_map, layout) for service_map in self.reads) and all(
            name in layout.maps
            and not lacks(layout.maps[name].key, key)
            and not lacks(layout.maps[name].value, value)
            for name, (key, value) in self.needs.items()
        )


_NUMBER = ("value",)
_ENTRY = (connections.FLOW, connections.CONNECTION)

_VIEWS = {
    "frontends": _View(services.frontends, (SERVICES, BACKENDS, FRONTENDS), keys=3),
    "services": _View(services.services, (SERVICES,), keys=6),
    "backends": _View(
        services.backends,
        (SERVICES, BACKENDS),
        {"backend_counters": (_NUMBER, services.TRAFFIC)},
        keys=2,
    ),
    "endpoints": _View(services.endpoints, (ENDPOINTS,)),
    "source_ranges": _View(clients.source_ranges, (SERVICES, SOURCE_RANGES), keys=2),
    "service_networks": _View(
        clients.service_networks, needs={"service_networks": (clients.NETWORK, _NUMBER)}
    ),
    "echo_addresses": _View(clients.echo_addresses, (ECHO_ADDRESSES,)),
    "affinities": _View(
        lambda reader: clients.affinities(reader, time.monotonic_ns()),
        (SERVICES,),
        {"affinities": (clients.CLIENT, clients.AFFINITY)},
        keys=2,
    ),
    "positions": _View(clients.positions, (SERVICES, POSITIONS), keys=2),
    "schedule_tables": _View(schedulers.schedule_tables, (SERVICES, SCHEDULE_TABLES), keys=4),
    "candidates": _View(schedulers.candidates, (SERVICES, CANDIDATES), keys=4),
    "spills": _View(schedulers.spills, (SERVICES, SPILLS), keys=2),
    "backend_loads": _View(
        schedulers.backend_loads, needs={"backend_loads": (_NUMBER, BackendLoad._fields)}
    ),
    "localities": _View(
        lambda reader: schedulers.localities(reader, time.monotonic_ns()),
        (SERVICES,),
        {"localities": (schedulers.LOCALITY, (*schedulers.CHANGED, *KEPT))},
        keys=4,
    ),
    "connections": _View(
        lambda reader: connections.connections(reader, time.monotonic_ns()),
        (SERVICES,),
        {"connections": _ENTRY, "new_connections": _ENTRY},
        keys=5,
    ),
    "node_addresses": _View(
        node.node_addresses, needs={"node_addresses": (("address",), ("nodeports",))}
    ),
    "interfaces": _View(node.interfaces, needs={"interfaces": (_NUMBER, node.INTERFACE)}, keys=2),
    "masquerade_choices": _View(
        node.masquerade_choices,
        needs={"masquerade_choices": (node.CHOICE, ("address",))},
        keys=2,
    ),
    "uplinks": _View(node.uplinks, needs={"uplinks": (_NUMBER, node.UPLINK)}, keys=2),
    "namespaces": _View(
        namespaces.namespaces, needs={"namespaces": (_NUMBER, namespaces.NAMESPACE)}, keys=2
    ),
    "socket_optouts": _View(
        namespaces.socket_optouts, needs={"socket_optouts": (namespaces.OPTOUT, _NUMBER)}
    ),
    "settings": _View(node.settings, needs={"settings": (_NUMBER, ())}),
    "counters": _View(node.counters, needs={"counters": (_NUMBER, ())}, keys=2),
    "sizes": _View(node.sizes),
}

READABLE = {
    *("hash", "lru_hash", "lpm_trie", "array"),
    *("percpu_array", "percpu_hash", "lru_percpu_hash"),
}
"""Types that can be read from end to end."""


def available(layout: Layout) -> tuple[str, ...]:
    """Return the names under which maps of this layout are shown, in the order of a full dump."""
    known = [name for name in _VIEWS if name in layout.maps or name == "sizes"]
    others = [
        name
        for name, map_layout in sorted(layout.maps.items())
        if map_layout.type in READABLE
        and name not in _VIEWS
        and map_info(name).role is Role.STATE
        and not map_info(name).shown_in
    ]
    shown = [*known, *others]
    # Where a view does not fit, the maps that it would have shown are shown by themselves.
    for name in layout.maps:
        whole = map_info(name).shown_in
        if whole and not (whole in shown and _VIEWS[whole].fits(layout)):
            shown.append(name)
    return tuple(shown)


def choose(layout: Layout, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the views for the names ``wanted``, each once; all of them if there are none.

    Raises ``UsageError`` for an unknown name.
    """
    shown = available(layout)
    chosen: dict[str, None] = {}
    for name in wanted:
        view = name if name in shown else map_info(name).shown_in or name
        if view not in shown:
            meant = meant_text(name, shown)
            raise UsageError(
                f"there is no map {name!r}{meant}", f"the maps are: {', '.join(shown)}"
            )
        chosen[view] = None
    return tuple(chosen) or shown


def dump(reader: Reader, wanted: Iterable[str] = ()) -> Iterator[Records]:
    """Yield the records of the maps ``wanted``, one map at a time, to keep only one in memory."""
    for name in choose(reader.layout, wanted):
        view = _VIEWS.get(name)
        if view and view.fits(reader.layout):
            yield replace(view.make(reader), keys=view.keys)
        else:
            yield generic(reader, name)
