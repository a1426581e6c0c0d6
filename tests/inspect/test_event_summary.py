"""``bpfsvc observe --summary``: a backend that is slower than the others is called slow."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bpfsvc.inspect.events.summary import Summary
from bpfsvc.model.events import Event, EventEnd
from tests.inspect.test_events import MADE, REFUSED

USUAL, SICK = EventEnd("10.244.1.2", 8080), EventEnd("10.244.2.4", 8080, "shop/web-7b5c", "node-2")


def answered(backend: EventEnd, *times: float) -> list[Event]:
    event = replace(MADE, kind="answered", backend=backend)
    return [replace(event, took_ms=time) for time in times]


def ended(backend: EventEnd, *times: float) -> list[Event]:
    return [replace(event, kind="ended") for event in answered(backend, *times)]


def lines(events: Iterable[Event]) -> list[str]:
    summary = Summary()
    for event in events:
        summary.add(event)
    return list(summary.lines())


def slow(events: Iterable[Event]) -> list[str]:
    return [line.strip() for line in lines(events) if "SLOW" in line]


def test_counts_and_times_stand_beside_each_backend() -> None:
    events = [
        replace(MADE, sample=4),
        *answered(SICK, 0.2, 0.3, 250.0),
        replace(MADE, kind="repeated"),
        replace(MADE, kind="refused", reason="backend_reset"),
        *ended(SICK, 1200.0),
        REFUSED,
    ]
    assert lines(events) == [
        "other/dns:53 UDP",
        "  BACKEND  MADE  ANSWERED  REPEATED  FAILED  CONNECT  WORST  LASTED",
        "  -           0         0         0       1        -      -       -",
        "    1 refused: no endpoint serves this client",
        "shop/web:http TCP",
        "  BACKEND                                    MADE  ANSWERED  REPEATED  FAILED  CONNECT"
        "   WORST   LASTED",
        "  10.244.2.4:8080 (shop/web-7b5c on node-2)     4         3         1       1  0.30 ms"
        "  250 ms  1200 ms",
        "    1 refused: the backend has reset it",
    ]


def dropped(sample: int = 1, **ends: EventEnd) -> Event:
    reason = "SKB_DROP_REASON_NETFILTER_DROP"
    return replace(MADE, kind="dropped_elsewhere", reason=reason, sample=sample, **ends)


def test_who_else_dropped_packets_stands_below_the_backend_with_both_ends() -> None:
    none = EventEnd()
    frontend = EventEnd("192.168.50.11", 30022)
    clients = [EventEnd(f"203.0.113.{number}", 40000) for number in range(5)]
    events = [
        *(dropped(client=client, backend=SICK) for client in clients),
        dropped(sample=4, client=clients[0], backend=SICK),
        dropped(client=clients[0], backend=none, frontend=frontend),
    ]
    dropper = "DROPPED ELSEWHERE: a rule of netfilter drops it (SKB_DROP_REASON_NETFILTER_DROP)"
    assert [line.strip() for line in lines(events) if line.startswith("    ")] == [
        dropper,
        "203.0.113.0 -> 192.168.50.11:30022: 1 packet",
        dropper,
        "203.0.113.0 -> shop/web-7b5c: 5 packets",
        "others: 2 packets",
        "203.0.113.1 -> shop/web-7b5c: 1 packet",
        "203.0.113.2 -> shop/web-7b5c: 1 packet",
    ]


def test_the_answers_to_sockets_are_not_taken_for_missing() -> None:
    by_socket = replace(MADE, path="socket")
    remarks = [line.strip() for line in lines([by_socket, by_socket, MADE])[3:]]
    assert remarks == ["2 made by sockets: answers are seen for TCP only"]


def test_a_backend_that_connects_later_than_the_others_is_slow() -> None:
    usual, late = answered(USUAL, 0.1, 0.2, 0.3), answered(SICK, 180.0, 200.0, 220.0)
    assert slow(usual + late) == ["SLOW to connect: 200 ms, and the others 0.20 ms"]


def test_a_backend_whose_connections_last_longer_is_slow() -> None:
    usual, late = ended(USUAL, 10, 20, 30), ended(SICK, 900, 1000, 1100)
    assert slow(usual + late) == ["SLOW to end its connections: 1000 ms, and the others 20 ms"]


def test_single_late_packets_and_equal_backends_are_not_slow() -> None:
    assert slow(answered(USUAL, 0.1, 0.2, 0.3) + answered(SICK, 0.1, 0.2, 900.0)) == []
    assert slow(answered(USUAL, 0.1, 0.2, 0.3) + answered(SICK, 900.0)) == []
    assert slow(answered(USUAL, 200, 200, 200) + answered(SICK, 180, 200, 220)) == []
    assert slow(answered(SICK, 180, 200, 220)) == [], "there is nothing to compare it with"
    assert slow(answered(USUAL, 0.1, 0.1, 0.1) + answered(SICK, 0.9, 0.9, 0.9)) == [], "0.8 ms"
