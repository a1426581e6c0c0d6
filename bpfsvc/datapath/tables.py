"""Service rows in the kernel: encoded as the C structs say, written plan by plan, read back.

Whoever uses this module speaks in the values of :mod:`bpfsvc.rows` and :mod:`bpfsvc.plan`; below it
there are only bytes.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from sys import intern

from bpfsvc.datapath.bpf import NOEXIST, Map
from bpfsvc.datapath.destinations import Destinations
from bpfsvc.datapath.pins import Pinned
from bpfsvc.errors import MapFull
from bpfsvc.plan import (
    BackendRow,
    EndpointRow,
    FrontendRow,
    Plan,
    Position,
    PositionRow,
    RangeRow,
    ServiceName,
)
from bpfsvc.rows import CLIENTS, Frontend, Network, Policies, Policy, ServicePort

_POLICY = ("first", "size", "masquerade", "reject", "zero")
_ADDRESS_KEY = ("address", "port", "protocol", "zero")

_ID = struct.Struct("=I")
_SLOTS = struct.Struct("=II")
_PAD = b"\0\0"
_ID_BITS = 32
"""Bits of a service id, which stands before the network in the keys of source_ranges."""

_ANYTHING = _ID.pack(1)
"""The value of rows that say everything by being there."""


class Tables:
    """The maps that hold Services."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the maps; raise :class:`KernelError` if their layout is not the one known here."""
        self._services, self._service = _open(
            pinned,
            "services",
            ("value",),
            ("namespace", "name", "port_name", "number", "protocol", "family"),
        )
        self._endpoints, _ = _open(pinned, "endpoints", _ADDRESS_KEY, ("value",))
        self._backends, self._backend = _open(
            pinned,
            "backends",
            ("service", "generation", "slot"),
            ("address", "port", "hairpin", "zero", "counters"),
        )
        policies = tuple(f"{who}.{name}" for who in CLIENTS for name in _POLICY)
        self._frontends, self._frontend = _open(
            pinned,
            "frontends",
            _ADDRESS_KEY,
            ("service", "generation", *policies, "affinity_seconds", "restricted", "zero"),
        )
        self._positions, _ = _open(
            pinned,
            "positions",
            ("service", "generation", "address", "port", "zero"),
            ("slots",),
        )
        self._ranges, _ = _open(
            pinned, "source_ranges", ("prefix", "service", "network"), ("value",)
        )
        self._service_networks, _ = _open(
            pinned, "service_networks", ("prefix", "network"), ("value",)
        )
        self._position = pinned.layout.maps["positions"].key.codec
        self._range = pinned.layout.maps["source_ranges"].key.codec
        self._network = pinned.layout.maps["service_networks"].key.codec
        self._address_key = pinned.layout.maps["frontends"].key.codec
        self._slot = pinned.layout.maps["backends"].key.codec
        self._destinations = Destinations(pinned)
        self._opted_out = pinned.map("socket_optouts")
        self._counters = pinned.map("backend_counters")

    # -- writing --

    def execute(self, plan: Plan) -> None:
        """Write a plan, phase by phase.

        Raises :class:`MapFull` at the first row without room.
        """
        self._services.update_many((_ID.pack(n.service_id), self._name(n)) for n in plan.names_put)
        zeros = bytes(self._counters.value_size)
        self._counters.update_many((_ID.pack(one), zeros) for one in plan.counters_taken)
        self._destinations.add_backends(map(self._endpoint_key, plan.endpoints_put))
        self._use_endpoints(plan.endpoints_put)
        self._put_backends(plan)
        self._ranges.update_many((self._range_key(row), _ANYTHING) for row in plan.ranges_put)
        self._destinations.add(row.frontend.address for row in plan.frontends_put)
        self._frontends.update_many(self._frontend_row(row) for row in plan.frontends_put)
        self._frontends.delete_many([self._frontend_key(f) for f in plan.frontends_deleted])
        self._ranges.delete_many([self._range_key(row) for row in plan.ranges_deleted])
        self._positions.delete_many([self._position_key(one) for one in plan.positions_deleted])
        self._backends.delete_many([self._slot.pack(*slot) for slot in plan.backends_deleted])
        self._leave_endpoints(plan.endpoints_left)
        self._services.delete_many([_ID.pack(service) for service in plan.names_deleted])

    def _put_backends(self, plan: Plan) -> None:
        try:
            self._backends.update_many(self._backend_row(row) for row in plan.backends_put)
            self._positions.update_many(
                (self._position_key(row.position), _SLOTS.pack(*row.slots))
                for row in plan.positions_put
            )
        except MapFull:
            # Nothing refers to this generation, and nothing will.
            self._positions.delete_many([self._position_key(p) for p, _ in plan.positions_put])
            self._backends.delete_many([self._backend_row(row)[0] for row in plan.backends_put])
            raise

    def set_service_networks(self, networks: Iterable[Network]) -> int:
        """Make the networks of cluster IPs exactly these; return the number of differences."""
        networks = set(networks)
        self._destinations.cover(networks)
        wanted = {self._network.pack(bits, address) for address, bits in networks}
        return _set_keys(self._service_networks, wanted)

    def know_destinations(self) -> None:
        """Go through all rows for the addresses they name."""
        self._destinations.refill()

    def set_opted_out(self, addresses: Iterable[bytes]) -> int:
        """Let exactly these be pods whose sockets are left alone; return the differences."""
        return _set_keys(self._opted_out, set(addresses))

    def set_endpoints(self, uses: Callable[[], Iterable[EndpointRow]]) -> int:
        """Make the endpoints exactly these, with their counts of uses; return the differences.

        ``uses()`` names an endpoint as often as it is used, in any order; it may be called twice.
        """
        # Nearly always nothing differs. Equal sums of hashes say so without a copy of either side.
        held = sum(hash(key) * _ID.unpack(count)[0] for key, count in self._endpoints.items())
        if held == sum(hash(self._endpoint_key(row)) for row in uses()):
            return 0
        missing = Counter(self._endpoint_key(row) for row in uses())
        gone = []
        for key, count in self._endpoints.items():
            if key not in missing:
                gone.append(key)
            elif missing[key] == _ID.unpack(count)[0]:
                del missing[key]
        self._destinations.add_backends(missing)
        self._endpoints.update_many((key, _ID.pack(count)) for key, count in missing.items())
        self._endpoints.delete_many(gone)
        return len(missing) + len(gone)

    def _use_endpoints(self, rows: Iterable[EndpointRow]) -> None:
        # The map itself holds the counts; memory for a second copy would be most of the agent's.
        for row, times in Counter(rows).items():
            key = self._endpoint_key(row)
            if not self._endpoints.update(key, _ID.pack(times), NOEXIST):
                uses = _ID.unpack(self._endpoints.lookup(key) or bytes(4))[0]
                self._endpoints.update(key, _ID.pack(uses + times))

    def _leave_endpoints(self, rows: Iterable[EndpointRow]) -> None:
        gone = []
        for row, times in Counter(rows).items():
            key = self._endpoint_key(row)
            uses = _ID.unpack(self._endpoints.lookup(key) or bytes(4))[0] - times
            if uses > 0:
                self._endpoints.update(key, _ID.pack(uses))
            else:
                gone.append(key)
        self._endpoints.delete_many(gone)

    # -- reading --

    def names(self) -> Iterator[ServiceName]:
        """Read the names of all service ids."""
        for key, value in self._services.items():
            namespace, name, port_name, number, protocol, family = self._service.unpack(value)
            port = ServicePort(_text(namespace), _text(name), _text(port_name), protocol, family)
            yield ServiceName(_ID.unpack(key)[0], port, number)

    def frontends(self) -> Iterator[FrontendRow]:
        """Read all frontends; equal policies share one value."""
        shared: dict[tuple[int, ...], Policies] = {}
        for key, value in self._frontends.items():
            address, port, protocol, _ = self._address_key.unpack(key)
            service, generation, *flat, _ = self._frontend.unpack(value)
            policies = shared.setdefault(tuple(flat), _policies(flat))
            frontend = Frontend(address, socket.ntohs(port), protocol)
            yield FrontendRow(frontend, service, generation, policies)

    def backends(self) -> Iterator[BackendRow]:
        """Read all backends of all generations."""
        for key, value in self._backends.items():
            address, port, hairpin, _, counter = self._backend.unpack(value)
            service, generation, slot = self._slot.unpack(key)
            yield BackendRow(
                service, generation, slot, address, socket.ntohs(port), counter, bool(hairpin)
            )

    def positions(self) -> Iterator[PositionRow]:
        """Read where backends of service ports with affinity stand."""
        for key, value in self._positions.items():
            service, generation, address, port, _ = self._position.unpack(key)
            first, last = _SLOTS.unpack(value)
            position = Position(service, generation, address, socket.ntohs(port))
            yield PositionRow(position, (first, last))

    def ranges(self) -> Iterator[RangeRow]:
        """Read where clients of restricted frontends may stand."""
        for key, _ in self._ranges.items():
            bits, service, address = self._range.unpack(key)
            yield RangeRow(service, Network(address, bits - _ID_BITS))

    # -- encoding --

    def _name(self, name: ServiceName) -> bytes:
        port = name.port
        return self._service.pack(
            port.namespace.encode(),
            port.name.encode(),
            port.port_name.encode(),
            name.number,
            port.protocol,
            port.family,
        )

    def _endpoint_key(self, row: EndpointRow) -> bytes:
        return self._address_key.pack(row.address, socket.htons(row.port), row.protocol, 0)

    def _frontend_key(self, frontend: Frontend) -> bytes:
        return self._address_key.pack(
            frontend.address, socket.htons(frontend.port), frontend.protocol, 0
        )

    def _frontend_row(self, row: FrontendRow) -> tuple[bytes, bytes]:
        pod, node, other, affinity_seconds, restricted = row.policies
        value = self._frontend.pack(
            row.service_id,
            row.generation,
            *(*pod, _PAD, *node, _PAD, *other, _PAD),
            affinity_seconds,
            restricted,
            b"",
        )
        return self._frontend_key(row.frontend), value

    def _backend_row(self, row: BackendRow) -> tuple[bytes, bytes]:
        key = self._slot.pack(row.service_id, row.generation, row.slot)
        port = socket.htons(row.port)
        return key, self._backend.pack(row.address, port, row.hairpin, 0, row.counter)

    def _position_key(self, one: Position) -> bytes:
        service, generation, address, port = one
        return self._position.pack(service, generation, address, socket.htons(port), 0)

    def _range_key(self, row: RangeRow) -> bytes:
        address, bits = row.network
        return self._range.pack(_ID_BITS + bits, row.service_id, address)


def _set_keys(table: Map, wanted: set[bytes]) -> int:
    """Make the keys of a map that is a set exactly these; return the number of differences."""
    held = {key for key, _ in table.items()}
    table.update_many((key, _ANYTHING) for key in wanted - held)
    table.delete_many(list(held - wanted))
    return len(wanted ^ held)


def _open(
    pinned: Pinned, name: str, key: tuple[str, ...], value: tuple[str, ...]
) -> tuple[Map, struct.Struct]:
    layout = pinned.layout.maps[name]
    layout.key.expect(f"the keys of map {name}", key)
    return pinned.map(name), layout.value.expect(f"the rows of map {name}", value)


def _policies(flat: list[int]) -> Policies:
    *three, affinity_seconds, restricted = flat
    pod, node, other = (_policy(*three[i : i + 4]) for i in range(0, len(three), len(_POLICY)))
    return Policies(pod, node, other, affinity_seconds, bool(restricted))


def _policy(first: int, size: int, masquerade: int, reject: int) -> Policy:
    return Policy(first, size, bool(masquerade), bool(reject))


def _text(field: bytes) -> str:
    return intern(field.rstrip(b"\0").decode(errors="replace"))
