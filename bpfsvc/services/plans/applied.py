"""The applied state: the entries of each service port that are in the kernel.

The entries of ten thousand Services are remembered for as long as the agent runs, so backends are
kept as one run of bytes and frontends as one flat tuple, and are spread out when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from bpfsvc.base.networks import Network
from bpfsvc.services.entries import (
    NO_EXTRA,
    Backend,
    Extra,
    Frontend,
    Place,
    Policies,
    ServicePort,
    ranges_of,
)

_SLOT = struct.Struct("=16sHIB")
"""Address, port, counter id, hairpin."""

_COUNTER_ID = struct.Struct("=18xIx")
"""Of a slot: metrics read those of all slots."""


class Applied(NamedTuple):
    """What the kernel holds of one service port; made by :func:`applied`.

    ``slots`` holds a packed record per backend slot; ``flat_frontends`` frontends and policies in
    turn. Positions are not kept but worked out: few service ports have affinity.
    """

    port: ServicePort
    number: int
    service_id: int
    generation: int
    slots: bytes
    flat_frontends: tuple[Frontend | Policies, ...]
    extra: Extra = NO_EXTRA

    @property
    def size(self) -> int:
        """The number of backend slots."""
        return len(self.slots) // _SLOT.size

    @property
    def ranges(self) -> tuple[Network, ...]:
        """The networks whose clients may use restricted frontends, sorted."""
        return ranges_of(self.extra)

    def records(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield address, port, id of the counters and hairpin (0 or 1) of each slot in order."""
        return _SLOT.iter_unpack(self.slots)

    def backends(self) -> tuple[Backend, ...]:
        """Return the backends in the order of their slots."""
        return tuple(
            Backend(address, port, bool(hairpin)) for address, port, _, hairpin in self.records()
        )

    def counters(self) -> dict[Place, int]:
        """Return the id of the counters of each backend."""
        return {(address, port): counters_id for address, port, counters_id, _ in self.records()}

    @property
    def counter_ids(self) -> set[int]:
        """The ids of the counters of all backends."""
        return {counters_id for (counters_id,) in _COUNTER_ID.iter_unpack(self.slots)}

    @property
    def has_affinity(self) -> bool:
        """True if its clients stay with their backends, so that these have positions."""
        return has_affinity(self.flat_frontends[1::2])  # type: ignore[arg-type]

    def positions(self) -> dict[Place, tuple[int, int]]:
        """Return the first and the last slot of each backend: in C and in L."""
        positions: dict[Place, tuple[int, int]] = {}
        if self.has_affinity:
            for slot, (address, port, _, _) in enumerate(self.records()):
                endpoint = address, port
                positions[endpoint] = (positions.get(endpoint, (slot,))[0], slot)
        return positions

    def frontend_items(self) -> Iterator[tuple[Frontend, Policies]]:
        """Yield the frontends and what clients meet there."""
        flat = iter(self.flat_frontends)
        return zip(flat, flat, strict=True)  # type: ignore[arg-type]

    def frontends(self) -> dict[Frontend, Policies]:
        """Return the frontends and what clients meet there."""
        return dict(self.frontend_items())


def has_affinity(policies: Iterable[Policies]) -> bool:
    """True if any of the policies keeps clients with their backends."""
    return any(item.affinity_seconds for item in policies)


def applied(
    port: ServicePort,
    number: int,
    service_id: int,
    generation: int,
    slots: Iterable[tuple[Backend, int]],
    frontends: Mapping[Frontend, Policies],
    extra: Extra = NO_EXTRA,
) -> Applied:
    """Return an :class:`Applied`; ``slots`` are backend and id of its counters, slot by slot."""
    return Applied(
        port,
        number,
        service_id,
        generation,
        b"".join([_SLOT.pack(address, at, id_, hairpin) for (address, at, hairpin), id_ in slots]),
        flat(frontends),
        extra,
    )


def flat(frontends: Mapping[Frontend, Policies]) -> tuple[Frontend | Policies, ...]:
    """Return frontends and policies in turn."""
    return tuple(chain.from_iterable(frontends.items()))


class AppliedState:
    """The service ports in the kernel, by Service."""

    def __init__(self) -> None:
        self._of_service: dict[tuple[str, str], tuple[Applied, ...]] = {}
        self.version = 0
        """Another number after each update."""

    def of(self, key: tuple[str, str]) -> dict[ServicePort, Applied]:
        """Return what the kernel holds of the Service (namespace, name)."""
        return {state.port: state for state in self._of_service.get(key, ())}

    def frontends(self, key: tuple[str, str]) -> set[Frontend]:
        """Return the frontends of the Service in the kernel."""
        return {
            frontend for state in self._of_service.get(key, ()) for frontend in state.frontends()
        }

    def keys(self) -> list[tuple[str, str]]:
        """Return the Services that have entries in the kernel."""
        return list(self._of_service)

    def snapshot(self) -> list[Applied]:
        """Return all service ports of one moment, for another thread than the one that settles."""
        return [state for states in list(self._of_service.values()) for state in states]

    def __iter__(self) -> Iterator[Applied]:
        for ports in self._of_service.values():
            yield from ports

    def update(self, changes: Mapping[ServicePort, Applied | None]) -> None:
        """Note what a plan has written: the new state of a service port, None where it is gone."""
        for port, now in changes.items():
            key = (port.namespace, port.name)
            rest = self._of_service.get(key, ())
            if rest:
                rest = tuple(state for state in rest if state.port != port)
            if now is not None:
                rest = (*rest, now)
            if rest:
                self._of_service[key] = rest
            else:
                self._of_service.pop(key, None)
        self.version += 1
