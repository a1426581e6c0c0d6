"""Failed connections among events: one summary for each way in which those of a Service fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bpfsvc.model.events import Event, EventEnd, EventService
from bpfsvc.model.failures import Failure, added, failure_of

WEB = EventService("shop", "web", "http")
BACKEND = EventEnd("10.244.1.7", 8080, "shop/web-7b5c", "node-1")


def refused(at: float, client: str = "203.0.113.9", **fields: Any) -> Event:
    given: dict[str, Any] = {"kind": "refused", "reason": "no_endpoints", "service": WEB} | fields
    return Event(at, client=EventEnd(client, 40000), **given)


def failures(events: Iterable[Event]) -> list[Failure]:
    """Return the sums of what failed."""
    return added(failure for failure in map(failure_of, events) if failure)


def test_what_failed_in_the_same_way_is_counted_with_its_first_and_its_last_time() -> None:
    (failure,) = failures([refused(5.0), refused(3.0), refused(9.0)])
    assert (failure.count, failure.first, failure.last) == (3, 3.0, 9.0)
    assert failure.text() == "shop/web:http: refused: no endpoint serves this client"


def test_service_reason_kind_and_backend_tell_failures_apart() -> None:
    events = [
        refused(1.0),
        refused(2.0, service=EventService("shop", "web", "https")),
        refused(3.0, reason="backend_reset", backend=BACKEND),
        refused(4.0, kind="dropped"),
        refused(5.0, kind="repeated", reason="", backend=BACKEND),
        refused(
            6.0,
            kind="dropped_elsewhere",
            reason="SKB_DROP_REASON_NETFILTER_DROP",
            backend=BACKEND,
        ),
    ]
    assert [failure.text() for failure in failures(events)] == [
        "shop/web:http: refused: no endpoint serves this client",
        "shop/web:https: refused: no endpoint serves this client",
        "shop/web:http: refused by 10.244.1.7:8080 (shop/web-7b5c on node-1):"
        " the backend has reset it",
        "shop/web:http: dropped: no endpoint serves this client",
        "shop/web:http: unanswered by 10.244.1.7:8080 (shop/web-7b5c on node-1)",
        "shop/web:http: dropped elsewhere to or from 10.244.1.7:8080"
        " (shop/web-7b5c on node-1): a rule of netfilter drops it"
        " (SKB_DROP_REASON_NETFILTER_DROP)",
    ]


def test_a_sampled_event_stands_for_several() -> None:
    (failure,) = failures([refused(1.0), refused(2.0, sample=16)])
    assert failure.count == 17


def test_three_clients_are_named_and_each_once() -> None:
    (failure,) = failures(refused(float(at), f"203.0.113.{at % 5}") for at in range(1, 20))
    assert failure.clients == ["203.0.113.1", "203.0.113.2", "203.0.113.3"]


def test_connections_that_work_and_lost_events_are_no_failures() -> None:
    assert failures([refused(1.0, kind="made", reason=""), Event(2.0, lost=7)]) == []


def test_the_last_to_happen_is_the_last() -> None:
    events = [refused(9.0), refused(1.0, kind="dropped"), refused(2.0, reason="source_range")]
    assert [failure.last for failure in failures(events)] == [1.0, 2.0, 9.0]


def test_what_the_programs_count_gets_its_clients_from_events_and_is_not_counted_twice() -> None:
    event = refused(2.0, reason="backend_reset", backend=BACKEND)
    seen = failure_of(event)
    assert seen
    counted = Failure("shop/web:http", "refused", "backend_reset", "10.244.1.7:8080", 7, 1.0, 1.0)
    (failure,) = added([counted, seen])
    assert (failure.count, failure.clients) == (7, ["203.0.113.9"])
    assert (failure.first, failure.last) == (1.0, 2.0)
    assert failure.backend == "10.244.1.7:8080 (shop/web-7b5c on node-1)"


def test_a_failure_that_only_an_event_has_told_is_counted_by_its_clients() -> None:
    (failure,) = failures([refused(1.0, reason="backend_reset", backend=BACKEND)])
    assert failure.count == 1
