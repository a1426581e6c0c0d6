"""The maps that hold Services, each described once.

Plan, diff, restore, drift and the writing of entries (:mod:`bpfsvc.datapath.maps.service_maps`) go
through :data:`MAPS` and know no map by name, but for what only one map has. So a new map is a C
header, a line here, and the function that fills it (see
:func:`bpfsvc.services.service_map.extra_map`). The maps of scheduling are described in
:mod:`bpfsvc.services.scheduling.maps`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from bpfsvc.base.networks import ALL_BITS, Network
from bpfsvc.services.entries import Frontend, Policies, ServicePort
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.maps import SCHEDULING_MAPS
from bpfsvc.services.service_map import Restore, ServiceMap, extra_map, kernel_map

# -- entries --


class ServiceName(NamedTuple):
    """What people call a service id. ``number`` is ``spec.ports[].port``."""

    service_id: int
    port: ServicePort
    number: int


class EndpointEntry(NamedTuple):
    """Address, port and protocol that are a backend of some service port."""

    address: bytes
    port: int
    protocol: int


class BackendEntry(NamedTuple):
    """The backend in one slot; ``counters_id`` is the index of its counters."""

    service_id: int
    generation: int
    slot: int
    address: bytes
    port: int
    counters_id: int
    hairpin: bool = False


class PositionEntry(NamedTuple):
    """The first and the last slot of a backend of a service port with session affinity."""

    service_id: int
    generation: int
    address: bytes
    port: int
    slots: tuple[int, int]


class SourceRangeEntry(NamedTuple):
    """A network whose clients may use the restricted frontends of a service port."""

    service_id: int
    network: Network


class EchoEntry(NamedTuple):
    """An address, as a network of its own, at which echo requests are answered."""

    address: Network


class FrontendEntry(NamedTuple):
    """What each class of clients meets at a frontend."""

    frontend: Frontend
    service_id: int
    generation: int
    policies: Policies


def _names(state: Applied) -> Iterable[ServiceName]:
    return (ServiceName(state.service_id, state.port, state.number),)


def _endpoints(state: Applied) -> Iterable[EndpointEntry]:
    protocol = state.port.protocol
    return [EndpointEntry(address, port, protocol) for address, port in state.counters()]


def _backends(state: Applied) -> Iterable[BackendEntry]:
    service_id, generation = state.service_id, state.generation
    return [
        BackendEntry(service_id, generation, slot, address, port, counters_id, bool(hairpin))
        for slot, (address, port, counters_id, hairpin) in enumerate(state.records())
    ]


def _positions(state: Applied) -> Iterable[PositionEntry]:
    service_id, generation = state.service_id, state.generation
    return [
        PositionEntry(service_id, generation, *endpoint, slots)
        for endpoint, slots in state.positions().items()
    ]


def _echo_addresses(state: Applied) -> list[EchoEntry]:
    addresses = {
        frontend.address: None for frontend, policies in state.frontend_items() if policies.echo
    }
    return [EchoEntry(Network(address, ALL_BITS)) for address in addresses]


def _frontends(state: Applied) -> Iterable[FrontendEntry]:
    service_id, generation = state.service_id, state.generation
    return [
        FrontendEntry(frontend, service_id, generation, policies)
        for frontend, policies in state.frontend_items()
    ]


# -- the registry --


SERVICES = ServiceMap("services", ServiceName, 1, "--max-services", _names, Restore.PART)
ENDPOINTS = ServiceMap(
    "endpoints", EndpointEntry, 3, "--max-backends", _endpoints, Restore.LATER, counted=True
)
BACKENDS = ServiceMap("backends", BackendEntry, 3, "--max-backend-slots", _backends, Restore.PART)
POSITIONS = ServiceMap("positions", PositionEntry, 4, "--max-backends", _positions, Restore.DERIVED)
SOURCE_RANGES = extra_map("source_ranges", SourceRangeEntry, 2, "--max-source-ranges")
ECHO_ADDRESSES = ServiceMap(
    "echo_addresses",
    EchoEntry,
    1,
    "--max-frontends",
    _echo_addresses,
    Restore.LATER,
    counted=True,
)
REFUSALS = kernel_map("refusals", "--max-services")
FRONTENDS = ServiceMap("frontends", FrontendEntry, 1, "--max-frontends", _frontends, Restore.PART)

MAPS: tuple[ServiceMap[Any], ...] = (
    SERVICES,
    REFUSALS,
    ENDPOINTS,
    BACKENDS,
    POSITIONS,
    SOURCE_RANGES,
    *SCHEDULING_MAPS,
    ECHO_ADDRESSES,
    FRONTENDS,
)
"""In the order in which entries may be put: frontends last, as they refer to all others. Entries
are deleted in the opposite order."""
