"""What the kernel is known to hold of each service port, to be compared with what it should hold.

The rows of ten thousand Services are remembered for as long as the agent runs, so backends are
kept as one run of bytes and frontends as one flat tuple, and are spread out when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.rows import Backend, Frontend, Network, Place, Policies, ServicePort

_SLOT = struct.Struct("=16sHIB")
"""Address, port, counter id, hairpin."""


class Programmed(NamedTuple):
    """The rows of one service port; made by :func:`programmed`.

    ``slots`` holds a packed record per backend slot; ``flat_frontends`` frontends and policies in
    turn. Where backends stand is not kept but worked out: few service ports have affinity.
    """

    port: ServicePort
    number: int
    service_id: int
    generation: int
    slots: bytes
    flat_frontends: tuple[Frontend | Policies, ...]
    ranges: tuple[Network, ...] = ()

    @property
    def size(self) -> int:
        """How many backend slots there are."""
        return len(self.slots) // _SLOT.size

    def pairs(self) -> Iterator[tuple[Backend, int]]:
        """Go over the slots in order: the backend and the id of its counters."""
        for address, port, counter, hairpin in _SLOT.iter_unpack(self.slots):
            yield Backend(address, port, bool(hairpin)), counter

    def row(self, slot: int) -> tuple[int, int, int, bytes, int, int, bool]:
        """Give one slot in the order of the fields of :class:`bpfsvc.plan.BackendRow`."""
        address, port, counter, hairpin = _SLOT.unpack_from(self.slots, slot * _SLOT.size)
        return self.service_id, self.generation, slot, address, port, counter, bool(hairpin)

    def backends(self) -> tuple[Backend, ...]:
        """Give the backends in the order of their slots."""
        return tuple(backend for backend, _ in self.pairs())

    def counters(self) -> dict[Place, int]:
        """Give the id of the counters of each backend."""
        return {backend.place: counter for backend, counter in self.pairs()}

    @property
    def counter_ids(self) -> set[int]:
        """Give the ids of the counters of all backends."""
        return {counter for _, _, counter, _ in _SLOT.iter_unpack(self.slots)}

    @property
    def has_affinity(self) -> bool:
        """Whether its clients stay with their backends, so that these have rows of positions."""
        return has_affinity(self.flat_frontends[1::2])  # type: ignore[arg-type]

    def positions(self) -> dict[Place, tuple[int, int]]:
        """Give the first and the last slot of each backend: where C and L have it."""
        found: dict[Place, tuple[int, int]] = {}
        if self.has_affinity:
            for slot, backend in enumerate(self.backends()):
                found[backend.place] = (found.get(backend.place, (slot,))[0], slot)
        return found

    def accounted(self, place: Place, slots: tuple[int, int]) -> int:
        """Count the slots that a row of positions rightly gives for a backend; 0 if it is wrong.

        With a row for each backend, all are right and there when the counts sum up to ``size``.
        """
        if not slots[0] <= slots[1] < self.size:
            return 0
        if any(self.row(slot)[3:5] != place for slot in slots):
            return 0
        return len(set(slots))

    def frontends(self) -> dict[Frontend, Policies]:
        """Give the frontends and what clients meet there."""
        flat = iter(self.flat_frontends)
        return dict(zip(flat, flat, strict=True))  # type: ignore[arg-type]


def has_affinity(policies: Iterable[Policies]) -> bool:
    """Whether any of the policies keeps clients with their backends."""
    return any(one.affinity_seconds for one in policies)


def programmed(
    port: ServicePort,
    number: int,
    service_id: int,
    generation: int,
    slots: Iterable[tuple[Backend, int]],
    frontends: Mapping[Frontend, Policies],
    ranges: tuple[Network, ...] = (),
) -> Programmed:
    """Remember rows. ``slots`` gives backend and counter id, slot by slot."""
    return Programmed(
        port,
        number,
        service_id,
        generation,
        b"".join(_SLOT.pack(*one.place, counter, one.hairpin) for one, counter in slots),
        flat(frontends),
        ranges,
    )


def flat(frontends: Mapping[Frontend, Policies]) -> tuple[Frontend | Policies, ...]:
    """Give frontends and policies in turn."""
    return tuple(part for pair in frontends.items() for part in pair)


class Ledger:
    """The service ports in the kernel, by Service."""

    def __init__(self) -> None:
        self._of_service: dict[tuple[str, str], tuple[Programmed, ...]] = {}

    def of(self, key: tuple[str, str]) -> dict[ServicePort, Programmed]:
        """Give what the kernel holds of the Service (namespace, name)."""
        return {one.port: one for one in self._of_service.get(key, ())}

    def frontends(self, key: tuple[str, str]) -> set[Frontend]:
        """Give the frontends that lead to the Service in the kernel."""
        return {one for port in self._of_service.get(key, ()) for one in port.frontends()}

    def keys(self) -> list[tuple[str, str]]:
        """Give the Services of which the kernel holds anything."""
        return list(self._of_service)

    def snapshot(self) -> list[Programmed]:
        """Give all service ports of one moment, to a thread that is not the one that settles."""
        return [one for ports in list(self._of_service.values()) for one in ports]

    def __iter__(self) -> Iterator[Programmed]:
        for ports in self._of_service.values():
            yield from ports

    def settle(self, changes: Mapping[ServicePort, Programmed | None]) -> None:
        """Note what a plan has written: new rows of a service port, or None where it is gone."""
        for port, now in changes.items():
            key = (port.namespace, port.name)
            rest = [one for one in self._of_service.get(key, ()) if one.port != port]
            if now is not None:
                rest.append(now)
            if rest:
                self._of_service[key] = tuple(rest)
            else:
                self._of_service.pop(key, None)
