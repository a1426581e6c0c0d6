"""Rows of many service ports, as streams, and how much room it takes to work on them.

What is allocated per row decides whether an agent of ten thousand Services stays small, so some
tests bound it: by bytes that Python allocates, which no allocator or other process blurs.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

from bpfsvc.plan import BackendRow, FrontendRow, ServiceName
from bpfsvc.programmed import Programmed, programmed
from bpfsvc.rows import Backend, Frontend, Policies, Policy, ServicePort

IDS = range(1, 500)
"""Service ids. Each has one frontend and four backends, under a generation of its own."""

_SLOTS = range(4)
_POLICIES = Policies(*(Policy(0, len(_SLOTS), False, False),) * 3)

_Result = TypeVar("_Result")


def names() -> Iterator[ServiceName]:
    for one in IDS:
        yield ServiceName(one, _port(one), 80)


def frontends() -> Iterator[FrontendRow]:
    for one in IDS:
        yield FrontendRow(_frontend(one), one, 1000 + one, _POLICIES)


def backends() -> Iterator[BackendRow]:
    for one in IDS:
        for slot in _SLOTS:
            yield BackendRow(one, 1000 + one, slot, *_backend(one, slot).place, 4 * one + slot)


def ports() -> Iterator[Programmed]:
    """Give what a ledger says of the same rows."""
    for one in IDS:
        slots = [(_backend(one, slot), 4 * one + slot) for slot in _SLOTS]
        yield programmed(_port(one), 80, one, 1000 + one, slots, {_frontend(one): _POLICIES})


def weighed(work: Callable[[], _Result]) -> tuple[_Result, int, int]:
    """Do some work; give its result, the bytes it left allocated, and the most it ever had."""
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
