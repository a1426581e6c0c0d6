"""Put service ports together from the maps: frontends, backends, and numbers of connections."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from bpfsvc.base.networks import network_text
from bpfsvc.datapath.maps.backend_outcomes import read_states
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect.entries import EntryReader, lacking
from bpfsvc.inspect.fields import lacks
from bpfsvc.inspect.maps.services import TRAFFIC
from bpfsvc.inspect.policies import PolicyTexts, action_text, longest_table
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.service_names import PortName, port_names
from bpfsvc.inspect.services import connection_counts
from bpfsvc.inspect.services.connection_counts import Counts
from bpfsvc.inspect.services.facts import (
    DRAINING,
    QUARANTINED,
    QUIESCED,
    READY,
    TRIAL,
    UNUSED,
    BackendFacts,
    FrontendFacts,
    ServicePortFacts,
    Treatment,
    Treatments,
)
from bpfsvc.inspect.services.reach import Reached, Reaching, WrittenBackend, ranges_of
from bpfsvc.inspect.services.socket_counts import SocketCounts
from bpfsvc.inspect.services.weights import SlotRange
from bpfsvc.services.entries import CLIENTS, Frontend, Place, Policy, frontend_text
from bpfsvc.services.plans.registry import FRONTENDS, SOURCE_RANGES, FrontendEntry
from bpfsvc.services.scheduling.spill import overload_text

_NEEDED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "backend_counters": (("value",), TRAFFIC),
    "connections": (connection_counts.KEY, connection_counts.VALUE),
}
"""Fields of maps that are not written by plans."""


class _Common(NamedTuple):
    """The same for all service ports.

    ``ejected``: backends in quarantine by the ids of their counters; True: on trial.
    """

    texts: PolicyTexts
    sockets: SocketCounts
    ejected: Mapping[int, bool]


def collect(reader: Reader, sockets: SocketCounts | None = None) -> list[ServicePortFacts]:
    """Return all service ports, sorted by name. ``sockets``: the counts of this reader, if known.

    Raises :class:`KernelError` if a map of another build lacks a needed field.
    """
    _require(reader.layout)
    entries, texts = EntryReader(reader), PolicyTexts(reader.layout)
    sockets = sockets or SocketCounts(reader)
    # In this order, a backend that is removed meanwhile drains, and no connection to a new backend
    # is seen without the backend.
    counts = connection_counts.connection_counts(reader)
    reaching = Reaching.read(entries, texts)
    frontends = _frontends(entries)
    ranges = _source_ranges(entries)
    names = {name.service: name for name in port_names(entries)}
    common = _Common(texts, sockets, _ejected(reader))
    ports = []
    for service in sorted(names.keys() | counts.keys() | sockets.services):
        own = frontends.get(service, [])
        name = names.get(service) or PortName(service=service)
        reached = reaching.reach(service, own)
        connections, networks = counts.get(service, {}), ranges.get(service, ())
        ports.append(_service_port(name, own, reached, connections, networks, common))
    ports.sort(key=lambda port: (not port.namespace, port.text, port.protocol, port.family))
    return ports


def _require(layout: Layout) -> None:
    maps = layout.maps
    for name, (key, value) in _NEEDED.items():
        if name not in maps or lacks(maps[name].key, key) or lacks(maps[name].value, value):
            raise lacking(name, layout)


def _frontends(entries: EntryReader) -> dict[int, list[FrontendEntry]]:
    """Return service id -> frontends, without what guards the other ports of an address."""
    by_service: dict[int, list[FrontendEntry]] = {}
    for entry in entries.read(FRONTENDS):
        if entry.frontend != Frontend.rest(entry.frontend.address):
            by_service.setdefault(entry.service_id, []).append(entry)
    return by_service


def _source_ranges(entries: EntryReader) -> dict[int, tuple[str, ...]]:
    """Return service id -> networks of its clients; none where all are allowed."""
    by_service: dict[int, tuple[str, ...]] = {}
    by_bits = sorted(entries.read(SOURCE_RANGES), key=lambda entry: entry.network[::-1])
    for service, network in by_bits:
        by_service[service] = (*by_service.get(service, ()), network_text(network))
    return by_service


def _ejected(reader: Reader) -> Mapping[int, bool]:
    """Return the backends in quarantine; earlier builds know none."""
    if "quarantined" not in reader.layout.maps:
        return {}
    return read_states(reader.entries("quarantined"), reader.layout)


# -- one service port --


def _service_port(
    name: PortName,
    frontends: Sequence[FrontendEntry],
    reached: Reached,
    counts: Mapping[Place, Counts],
    ranges: tuple[str, ...],
    common: _Common,
) -> ServicePortFacts:
    texts, sockets = common.texts, common.sockets
    policies = [entry.policies for entry in frontends]
    # Of two frontends, one may have endpoints of one weight only, and so no table.
    by_table = max(policies, key=lambda candidate: longest_table(candidate) > 0, default=None)
    local = reached.local_ranges
    counting: dict[Place, int] = {}
    if any(map(texts.counts, policies)):
        counting = {backend.endpoint: backend.counters for backend in reached.backends}
    all_counts = sockets.with_sockets(name.service, counts, counting)
    return ServicePortFacts(
        **name._asdict(),
        scheduler=texts.scheduler(by_table) if by_table else "",
        said=texts.said(policies[0] if policies else None),
        zone_overload=overload_text(reached.overload) if reached.overload else "",
        affinity_seconds=max((policy.affinity_seconds for policy in policies), default=0),
        source_ranges=ranges,
        frontends=tuple(
            _frontend_facts(entry, local)
            for entry in sorted(frontends, key=lambda entry: entry.frontend)
        ),
        backends=tuple(_backends(reached, all_counts, common.ejected)),
        partial=sockets.partial(name.protocol, policies, texts),
    )


def _frontend_facts(entry: FrontendEntry, local: Collection[SlotRange]) -> FrontendFacts:
    """``local``: the ranges of slots with backends on this node only, unlike other ranges."""
    frontend, policies = entry.frontend, entry.policies
    is_local = tuple(slots in local for slots in ranges_of(entry))
    return FrontendFacts(
        frontend.address,
        frontend.port,
        frontend_text(frontend),
        policies.restricted,
        _treatments(policies.by_class, is_local),
    )


@lru_cache(maxsize=1024)
def _treatments(policies: tuple[Policy, ...], is_local: tuple[bool, ...]) -> Treatments:
    """Return what clients get; ten thousand Services share a few of these."""
    return Treatments(
        *(
            Treatment(action_text(policy), policy.size, of_node)
            for policy, of_node in zip(policies, is_local, strict=True)
        )
    )


def _backends(
    reached: Reached, counts: Mapping[Place, Counts], ejected: Mapping[int, bool]
) -> Iterator[BackendFacts]:
    """Yield the backends; backends that only have connections left come last."""
    known = set()
    for backend in reached.backends:
        endpoint = backend.endpoint
        if endpoint in known:
            continue  # with other counters: its frontends are moving to a newer generation
        known.add(endpoint)
        count = counts.get(endpoint, Counts())
        classes = tuple(name for name in CLIENTS if name in reached.clients.get(backend, ()))
        state = _state(backend, reached, ejected, in_use=any(count))
        yield BackendFacts(
            endpoint,
            state,
            reached.weights.get(backend, 1) if classes else 0,
            backend.local,
            classes,
            count.active,
            count.inactive,
            backend.counters,
            count.half_open,
        )
    for endpoint, count in sorted(counts.items()):
        if endpoint not in known:
            numbers = count.active, count.inactive
            yield BackendFacts(endpoint, DRAINING, 0, None, (), *numbers, 0, count.half_open)


def _state(
    backend: WrittenBackend, reached: Reached, ejected: Mapping[int, bool], *, in_use: bool
) -> str:
    """Return the state of a backend. ``in_use``: it has connections."""
    if ejected.get(backend.counters):
        return TRIAL
    if backend in reached.clients:
        return READY
    if backend in reached.quiesced:
        return QUARANTINED if backend.counters in ejected else QUIESCED
    return DRAINING if in_use else UNUSED
