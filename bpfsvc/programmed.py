"""What the kernel is known to hold of each service port, to be compared with what it should hold.

The rows of ten thousand Services are remembered for as long as the agent runs, so backends are
kept as one run of bytes and frontends as one flat tuple, and are spread out when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.rows import Backend, Frontend, Policies, ServicePort

_SLOT = struct.Struct("=16sHI")
"""Address, port, counter id."""


class Programmed(NamedTuple):
    """The rows of one service port; made by :func:`programmed`.

    ``slots`` holds a packed record per backend slot; ``flat_frontends`` frontends and policies in
    turn.
    """

    port: ServicePort
    number: int
    service_id: int
    generation: int
    slots: bytes
    flat_frontends: tuple[Frontend | Policies, ...]

    @property
    def size(self) -> int:
        """How many backend slots there are."""
        return len(self.slots) // _SLOT.size

    def pairs(self) -> Iterator[tuple[Backend, int]]:
        """Go over the slots in order: the backend and the id of its counters."""
        for address, port, counter in _SLOT.iter_unpack(self.slots):
            yield Backend(address, port), counter

    def row(self, slot: int) -> tuple[int, int, int, bytes, int, int]:
        """Give one slot in the order of the fields of :class:`bpfsvc.plan.BackendRow`."""
        address, port, counter = _SLOT.unpack_from(self.slots, slot * _SLOT.size)
        return self.service_id, self.generation, slot, address, port, counter

    def backends(self) -> tuple[Backend, ...]:
        """Give the backends in the order of their slots."""
        return tuple(backend for backend, _ in self.pairs())

    def counters(self) -> dict[Backend, int]:
        """Give the id of the counters of each backend."""
        return dict(self.pairs())

    def frontends(self) -> dict[Frontend, Policies]:
        """Give the frontends and what clients meet there."""
        flat = iter(self.flat_frontends)
        return dict(zip(flat, flat, strict=True))  # type: ignore[arg-type]


def programmed(
    port: ServicePort,
    number: int,
    service_id: int,
    generation: int,
    slots: Iterable[tuple[Backend, int]],
    frontends: Mapping[Frontend, Policies],
) -> Programmed:
    """Remember rows. ``slots`` gives backend and counter id, slot by slot."""
    return Programmed(
        port,
        number,
        service_id,
        generation,
        b"".join(_SLOT.pack(address, number, counter) for (address, number), counter in slots),
        tuple(part for pair in frontends.items() for part in pair),
    )


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
