"""Which map is shown by what, under which names they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bpfsvc.datapath.layout import Layout
from bpfsvc.errors import UsageError
from bpfsvc.inspection import clients, connections, namespaces, node, services
from bpfsvc.inspection.fields import lacks
from bpfsvc.inspection.generic import generic
from bpfsvc.inspection.reader import Reader
from bpfsvc.inspection.records import Records


@dataclass(frozen=True, slots=True)
class _View:
    """What makes records, and the fields it cannot do without: map -> (key's, value's)."""

    make: Callable[[Reader], Records]
    needs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]

    def fits(self, layout: Layout) -> bool:
        """Whether this view can read maps of such a layout."""
        return all(
            name in layout.maps
            and not lacks(layout.maps[name].key, key)
            and not lacks(layout.maps[name].value, value)
            for name, (key, value) in self.needs.items()
        )


_NUMBER = ("value",)
_NAMES = {"services": (_NUMBER, services.NAME)}
_BACKENDS = {**_NAMES, "backends": (services.SLOT, services.BACKEND)}
_ENTRY = (connections.FLOW, connections.CONNECTION)

_VIEWS = {
    "frontends": _View(
        services.frontends, {**_BACKENDS, "frontends": (services.ADDRESS_KEY, services.FRONTEND)}
    ),
    "services": _View(services.services, _NAMES),
    "backends": _View(
        services.backends, {**_BACKENDS, "backend_counters": (_NUMBER, services.TRAFFIC)}
    ),
    "endpoints": _View(services.endpoints, {"endpoints": (services.ADDRESS_KEY, _NUMBER)}),
    "source_ranges": _View(
        clients.source_ranges, {**_NAMES, "source_ranges": (clients.RANGE, _NUMBER)}
    ),
    "service_networks": _View(
        clients.service_networks, {"service_networks": (clients.NETWORK, _NUMBER)}
    ),
    "affinities": _View(
        lambda reader: clients.affinities(reader, time.monotonic_ns()),
        {**_NAMES, "affinities": (clients.CLIENT, clients.AFFINITY)},
    ),
    "positions": _View(clients.positions, {**_NAMES, "positions": (clients.POSITION, ("slots",))}),
    "connections": _View(
        lambda reader: connections.connections(reader, time.monotonic_ns()),
        {**_NAMES, "connections": _ENTRY, "new_connections": _ENTRY},
    ),
    "node_addresses": _View(
        node.node_addresses, {"node_addresses": (("address",), ("nodeports",))}
    ),
    "interfaces": _View(node.interfaces, {"interfaces": (_NUMBER, node.INTERFACE)}),
    "uplinks": _View(node.uplinks, {"uplinks": (_NUMBER, node.UPLINK)}),
    "namespaces": _View(namespaces.namespaces, {"namespaces": (_NUMBER, namespaces.NAMESPACE)}),
    "socket_optouts": _View(
        namespaces.socket_optouts, {"socket_optouts": (namespaces.OPTOUT, _NUMBER)}
    ),
    "settings": _View(node.settings, {"settings": (_NUMBER, ())}),
    "counters": _View(node.counters, {"counters": (_NUMBER, ())}),
    "sizes": _View(node.sizes, {}),
}

_SHOWN_WITHIN = {"new_connections": "connections", "backend_counters": "backends"}
"""Maps whose content another view shows; by their own name they are that view."""

_INTERNAL = {
    *("layout", "steps", "packets", "port_filters", "direct_flows", "half_open"),
    *("quotes", "crc32c_steps", "fragments", "fragment_budgets", "udp_sockets", "udp_serving"),
    "destinations",
}
"""The description itself, and machinery of the programs: scratch space, bytes, counts."""

_READABLE = {
    *("hash", "lru_hash", "lpm_trie", "array"),
    *("percpu_array", "percpu_hash", "lru_percpu_hash"),
}
"""Types that can be read from end to end."""


def available(layout: Layout) -> tuple[str, ...]:
    """Give the names under which maps of this layout are shown, in the order of a full dump."""
    known = [name for name in _VIEWS if name in layout.maps or name == "sizes"]
    others = [
        name
        for name, each in sorted(layout.maps.items())
        if each.type in _READABLE and name not in {*_VIEWS, *_SHOWN_WITHIN, *_INTERNAL}
    ]
    shown = [*known, *others]
    # Where a view does not fit, what it would have shown of other maps is shown by them.
    for part, whole in _SHOWN_WITHIN.items():
        if part in layout.maps and not (whole in shown and _VIEWS[whole].fits(layout)):
            shown.append(part)
    return tuple(shown)


def choose(layout: Layout, wanted: Iterable[str]) -> tuple[str, ...]:
    """Give the views for the names ``wanted``, each once; all of them if there are none.

    Raises ``UsageError`` for a name that is none.
    """
    shown = available(layout)
    chosen: dict[str, None] = {}
    for name in wanted:
        view = name if name in shown else _SHOWN_WITHIN.get(name, name)
        if view not in shown:
            raise UsageError(f"there is no map {name!r}", f"the maps are: {', '.join(shown)}")
        chosen[view] = None
    return tuple(chosen) or shown


def dump(reader: Reader, wanted: Iterable[str] = ()) -> Iterator[Records]:
    """Give the records of the maps ``wanted`` one map at a time, as only one need be in memory."""
    for name in choose(reader.layout, wanted):
        view = _VIEWS.get(name)
        yield view.make(reader) if view and view.fits(reader.layout) else generic(reader, name)
