"""``bpfsvc explain --live``: which events are of the question, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from bpfsvc.base.address import pack
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.live_traffic import LiveTraffic
from bpfsvc.explain.question import question
from bpfsvc.model.events import Event, EventEnd, EventService

CLIENT, OTHER = EventEnd("203.0.113.9", 40000), EventEnd("203.0.113.10", 40000)
FRONTEND, BACKEND = EventEnd("192.168.50.11", 30080), EventEnd("10.244.1.5", 8080)
MADE = Event(
    1.0,
    kind="made",
    path="tc",
    protocol="TCP",
    service=EventService("shop", "web", "http"),
    client=CLIENT,
    frontend=FRONTEND,
    backend=BACKEND,
)
ANSWERED = replace(MADE, kind="answered", took_ms=0.5)
SERVED = Answer(verdict="dnat", service="shop/web")


def traffic(
    events: Iterable[Event],
    answer: Answer = SERVED,
    *,
    origin: str = "external",
    own: Collection[bytes] = (),
) -> LiveTraffic:
    asked = question(origin, CLIENT.address, "TCP", FRONTEND.address, FRONTEND.port)
    seen = LiveTraffic(asked, answer, own)
    for event in events:
        seen.add(event)
    return seen


def test_connections_of_the_client_to_the_service_are_summed_up() -> None:
    assert [*traffic([MADE, ANSWERED, replace(MADE, sample=4)]).lines(2.0)] == [
        "live for 2 s: 5 connections of 203.0.113.9 to shop/web",
        "  shop/web:http TCP",
        "    BACKEND          MADE  ANSWERED  REPEATED  FAILED  CONNECT    WORST  LASTED",
        "    10.244.1.5:8080     5         1         0       0  0.50 ms  0.50 ms       -",
    ]


def test_others_are_told_apart() -> None:
    events = [
        replace(MADE, client=OTHER),
        replace(ANSWERED, client=OTHER),
        replace(MADE, protocol="UDP"),
        replace(MADE, service=EventService("shop", "db", "http")),
    ]
    assert [*traffic(events).lines(10.0)] == [
        "live for 10 s: nothing was seen of 203.0.113.9 to shop/web; other clients made"
        " 1 connection"
    ]


def test_nothing_is_one_line() -> None:
    assert [*traffic([]).lines(10.0)] == [
        "live for 10 s: nothing was seen of 203.0.113.9 to shop/web"
    ]


def test_processes_of_the_node_connect_from_each_of_its_addresses() -> None:
    own = [pack("192.168.50.11")]
    by_node = replace(MADE, client=EventEnd("192.168.50.11"))
    assert traffic([by_node], origin="node", own=own).to_object(1.0)["made"] == 1
    assert traffic([by_node], own=own).to_object(1.0)["made"] == 0


def test_without_a_service_the_address_and_port_count() -> None:
    refused = replace(MADE, kind="refused", service=EventService(), reason="no_service")
    answer = Answer(verdict="drop")
    elsewhere = replace(refused, frontend=EventEnd("192.168.50.11", 30081))
    assert [*traffic([refused, elsewhere], answer).lines(3.0)][:1] == [
        "live for 3 s: 0 connections of 203.0.113.9 to 192.168.50.11:30080"
    ]
    (backend,) = traffic([refused, elsewhere], answer).to_object(3.0)["backends"]
    assert backend["failures"] == [{"kind": "refused", "reason": "no_service", "count": 1}]


def test_lost_events_are_said() -> None:
    lost = Event(1.0, lost=3, lost_by="kernel")
    assert [*traffic([lost]).lines(1.0)][1:] == [
        "  lost 3 events: the agent was too slow for the kernel"
    ]
