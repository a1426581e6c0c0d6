"""All maps of the programs: the facts that the layout does not have.

The maps that hold Services are described in :mod:`bpfsvc.services.plans.registry`. How a map is
shown to people is bound to its name in :mod:`bpfsvc.inspect.maps.dump`; a map without a view of its
own is shown by its field names.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from bpfsvc.services.plans import registry


class Role(Enum):
    """The use of a map for people and for a newer build."""

    STATE = auto()
    """Shown, and carried over into a newer build."""
    INTERNAL = auto()
    """Carried over, but of no meaning to people: counts and bytes of the programs."""
    PER_BUILD = auto()
    """Made anew by each build: scratch space, indices, what the programs can do without."""


class MapInfo(NamedTuple):
    """One map.

    * ``option``: enlarges it; "" if its size is fixed.
    * ``shown_in``: another map; its view shows the entries of this map, too.
    """

    option: str = ""
    role: Role = Role.STATE
    shown_in: str = ""


_INTERNAL, _PER_BUILD = MapInfo(role=Role.INTERNAL), MapInfo(role=Role.PER_BUILD)

MAPS: dict[str, MapInfo] = {
    **{service_map.name: MapInfo(service_map.option) for service_map in registry.MAPS},
    "service_networks": MapInfo(),
    "socket_optouts": MapInfo(),
    "backend_counters": MapInfo("--max-backends", shown_in="backends"),
    "backend_loads": MapInfo("--max-backends"),
    "backend_failures": MapInfo("--max-backends", Role.INTERNAL),
    "connect_times": MapInfo("--max-backends", Role.INTERNAL),
    "connecting": _INTERNAL,
    "backend_outcomes": _INTERNAL,
    "quarantined": MapInfo(),
    "udp_serving": MapInfo("--max-backend-slots", Role.INTERNAL),
    # connections
    "connections": MapInfo("--max-connections"),
    "new_connections": MapInfo("--max-new-connections", shown_in="connections"),
    "closed_flows": _PER_BUILD,
    "time_wait_flows": _PER_BUILD,
    "direct_flows": MapInfo("--max-direct-flows", Role.PER_BUILD),
    "netfilter_flows": MapInfo("--max-direct-flows", Role.INTERNAL),
    "affinities": MapInfo("--max-affinities"),
    "half_open": _INTERNAL,
    "untranslated": _INTERNAL,
    "masquerade_turns": _INTERNAL,
    "port_shortages": _INTERNAL,
    "fragments": _INTERNAL,
    "fragment_budgets": _INTERNAL,
    "icmp_targets": _INTERNAL,
    "icmp_total": _INTERNAL,
    "udp_sockets": _INTERNAL,
    "socket_translations": _INTERNAL,
    "socket_overflow": _INTERNAL,
    "bound_sockets": _INTERNAL,
    "peer_names": _INTERNAL,
    "socket_loads": _INTERNAL,
    # this node
    "node_addresses": MapInfo("--max-node-addresses"),
    "interfaces": MapInfo("--max-interfaces"),
    "uplinks": MapInfo(),
    "masquerade_choices": MapInfo("--max-interfaces"),
    "hardware_addresses": MapInfo("--max-interfaces", Role.INTERNAL),
    "namespaces": MapInfo(),
    "settings": MapInfo(),
    "counters": MapInfo(),
    "events": _PER_BUILD,
    "observed": _PER_BUILD,
    "observed_sockets": _PER_BUILD,
    "dropped_packets": _PER_BUILD,
    # the programs themselves
    "layout": _PER_BUILD,
    "steps": _PER_BUILD,
    "packets": _PER_BUILD,
    "schedule_works": _PER_BUILD,
    "fresh_namespaces": _PER_BUILD,
    "cached_routes": _PER_BUILD,
    "pod_ports": _PER_BUILD,
    "fast_flows": MapInfo("--max-direct-flows", Role.INTERNAL),
    "established_flows": _INTERNAL,
    "established_ports": _INTERNAL,
    "established_counts": _PER_BUILD,
    "port_filters": _PER_BUILD,
    "destinations": _PER_BUILD,
    "quotes": _INTERNAL,
    "crc32c_steps": _INTERNAL,
}
"""By name. A map that is not here, of another version, is one of state."""


def map_info(name: str) -> MapInfo:
    """Return the registered facts of a map; the usual ones for a map of another version."""
    return MAPS.get(name, MapInfo())


def option_for(name: str) -> str:
    """Return the option that enlarges a map, "" if there is none."""
    return map_info(name).option
