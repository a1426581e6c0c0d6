"""Entries of many service ports, as streams, and the memory that work on them takes.

The memory per entry decides whether an agent of ten thousand Services stays small, so some tests
limit it. They count the bytes that Python allocates, which other processes do not affect.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, ServicePort
from bpfsvc.services.plans.applied import Applied, applied
from bpfsvc.services.plans.registry import BackendEntry, FrontendEntry, ServiceName
from bpfsvc.services.service_map import E, ServiceMap

IDS = range(1, 500)
"""Service ids. Each has one frontend and four backends, in its own generation."""

_SLOTS = range(4)
_POLICIES = Policies(*(Policy(0, len(_SLOTS), False, False),) * 3)

_Result = TypeVar("_Result")


def names() -> Iterator[ServiceName]:
    for one in IDS:
        yield ServiceName(one, _port(one), 80)


def frontends() -> Iterator[FrontendEntry]:
    for one in IDS:
        yield FrontendEntry(_frontend(one), one, 1000 + one, _POLICIES)


def backends() -> Iterator[BackendEntry]:
    for one in IDS:
        for slot in _SLOTS:
            yield BackendEntry(one, 1000 + one, slot, *_backend(one, slot).place, 4 * one + slot)


def read(one: ServiceMap[E], /) -> Iterable[E]:
    """Read one of the maps; those that are not named here are empty."""
    streams: dict[str, Callable[[], Iterator[Any]]] = {
        "services": names,
        "frontends": frontends,
        "backends": backends,
    }
    return streams[one.name]() if one.name in streams else ()


def ports() -> Iterator[Applied]:
    """Return the applied state of the same entries."""
    for one in IDS:
        slots = [(_backend(one, slot), 4 * one + slot) for slot in _SLOTS]
        yield applied(_port(one), 80, one, 1000 + one, slots, {_frontend(one): _POLICIES})


def measured(work: Callable[[], _Result]) -> tuple[_Result, int, int]:
    """Do some work; return its result, the bytes that stay allocated, and the peak."""
    tracemalloc.start()
    try:
        result = work()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, kept, peak


def _port(one: int) -> ServicePort:
    return ServicePort("default", f"web-{one}", "http", 6, 4)


def _frontend(one: int) -> Frontend:
    return Frontend(one.to_bytes(16, "big"), 80, 6)


def _backend(one: int, slot: int) -> Backend:
    return Backend((4 * one + slot).to_bytes(16, "big"), 8080)
