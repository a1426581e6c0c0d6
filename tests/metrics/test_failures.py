"""Failed connections of a Service only grow, also if backends are removed."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bpfsvc.base.service_series import ALL, ServiceSeries
from bpfsvc.metrics.failures import ServiceFailures
from bpfsvc.services.entries import Backend, ServicePort
from bpfsvc.services.plans.applied import AppliedState, applied

REASONS = ("refused", "unanswered", "unreachable")
PORT = ServicePort("shop", "web", "http", 6, 4)


class Failures:
    """A per-CPU hash of two CPUs, instead of the kernel's."""

    cpu_value_size, value_size = 24, 48

    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, int, int]] = {}

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key, counts in self.counts.items():
            yield (
                struct.pack("=I", key),
                struct.pack("=6Q", counts[0] // 2, *counts[1:], counts[0] - counts[0] // 2, 0, 0),
            )

    def lookup(self, key: bytes) -> bytes | None:  # noqa: ARG002
        raise AssertionError("not read one by one")

    def blocks(self) -> Iterator[tuple[int, bytes, bytes]]:
        raise AssertionError("no array")


def write(known: AppliedState, *counters: int) -> None:
    """Have a Service whose backends have these counters; none: it is removed."""
    slots = [(Backend(bytes([n]) * 16, 80), n) for n in counters]
    known.update({PORT: applied(PORT, 80, 1, 1, slots, {}) if slots else None})


def samples(failures: ServiceFailures) -> dict[str, float]:
    found = failures.collect().samples
    assert all(sample.name == "bpfsvc_service_failed_connections_total" for sample in found)
    return {sample.labels["reason"]: sample.value for sample in found}


def test_only_what_fails_from_the_start_of_the_agent_on_is_counted() -> None:
    counted, known = Failures(), AppliedState()
    counted.counts = {7: (5, 0, 0)}
    write(known, 7)
    failures = ServiceFailures(counted, REASONS, known, ALL)
    assert samples(failures) == {}
    counted.counts = {7: (6, 2, 0)}
    assert samples(failures) == {"refused": 1, "unanswered": 2}
    assert samples(failures) == {"refused": 1, "unanswered": 2}


def test_the_failures_of_a_removed_backend_stay_in_the_sum() -> None:
    counted, known = Failures(), AppliedState()
    write(known, 7, 8)
    failures = ServiceFailures(counted, REASONS, known, ALL)
    counted.counts = {7: (3, 0, 0), 8: (0, 0, 1)}
    samples(failures)
    write(known, 8)
    counted.counts = {8: (0, 0, 1)}
    assert samples(failures) == {"refused": 3, "unreachable": 1}


def test_a_service_that_is_removed_has_no_counter() -> None:
    counted, known = Failures(), AppliedState()
    write(known, 7)
    failures = ServiceFailures(counted, REASONS, known, ALL)
    counted.counts = {7: (3, 0, 0)}
    assert samples(failures)
    write(known)
    assert samples(failures) == {}


def test_the_service_ports_without_series_of_their_own_are_one_sum() -> None:
    counted, known = Failures(), AppliedState()
    write(known, 7)
    failures = ServiceFailures(counted, REASONS, known, ServiceSeries(patterns=("other/*",)))
    counted.counts = {7: (3, 0, 0)}
    (sample,) = failures.collect().samples
    assert (sample.labels["namespace"], sample.labels["name"], sample.value) == ("", "other", 3)
