"""What ``bpfsvc explain`` says where connections may overflow from the near endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.maps.backend_loads import Load
from bpfsvc.explain.answer import Outcome
from bpfsvc.explain.question import question
from bpfsvc.explain.reasons import reasons
from bpfsvc.explain.spill import spill_reasons
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.cache import Known
from bpfsvc.services.plans.applied import applied
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from tests.services.objects import CONFIG, NODE, endpoint_slice, frontend, service

VIP = frontend("10.96.0.1 80")
NEAR, FAR = ("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6")
PODS = endpoint_slice(
    *(f"{address} here zone-a@" for address in NEAR),
    *(f"{address} there zone-b@" for address in FAR),
)


def spilling(overload: str = "1.5", **spec: Any) -> Service:
    return service(annotations={"bpfsvc.io/zone-overload": overload}, **spec)


def asked(
    thing: Service, pods: EndpointSlice = PODS, *, spilled: bool = False, verdict: str = "dnat"
) -> Outcome:
    """Return what becomes of a packet of a pod."""
    scheduling, faults = read_scheduling(thing, [pods])
    assert not faults
    ((port, entries),) = evaluate(thing, [pods], NODE, CONFIG, scheduling).entries.items()
    # The id of an endpoint's counters is the last byte of its address.
    slots = [(backend, backend.address[-1]) for backend in entries.backends]
    owner = applied(port, 80, 1, 1, slots, entries.frontends, entries.extra)
    asked_question = question("pod", "10.244.0.9", "TCP", "10.96.0.1", 80)
    at = (pack("10.0.0.4"), 8080)
    return Outcome(verdict, asked_question, VIP, owner, "pod", frozenset(), at, spilled=spilled)


def said(outcome: Outcome, loads: Mapping[int, int], inactive: int = 0) -> list[str]:
    return list(spill_reasons(outcome, lambda ids: Load(loads.get(ids, 0), inactive)))


def test_it_says_that_a_connection_spills_over_and_by_which_numbers() -> None:
    outcome = asked(spilling(), spilled=True)
    assert said(outcome, {1: 5, 2: 4, 3: 1}) == [
        "the 2 near endpoints and all 6 that serve have 9 and 10 active connections, on average"
        " 4.50 and 1.67 (zone-overload 1.5)",
        "the near ones have more than 1.5 times 1.67 = 2.50: the connection overflows",
    ]
    assert len(outcome.backends) == 6


def test_it_says_that_a_connection_stays_near() -> None:
    outcome = asked(spilling())
    assert said(outcome, dict.fromkeys(range(1, 7), 3), inactive=7) == [
        "the 2 near endpoints and all 6 that serve have 6 and 18 active connections, on average"
        " 3.00 and 3.00 (zone-overload 1.5)",
        "the near ones do not have more than 1.5 times 3.00 = 4.50: the connection stays near",
    ]
    assert len(outcome.backends) == 2


def test_of_many_endpoints_it_says_how_many_are_added_up() -> None:
    far = (f"10.0.1.{at} there zone-b@" for at in range(1, 81))
    pods = endpoint_slice(*(f"{address} here zone-a@" for address in NEAR), *far)
    numbers, most, _ = said(asked(spilling(), pods), {})
    assert "the 2 near endpoints and all 82 that serve have 0 and 0" in numbers
    assert most == "the programs add up the connections of 64 endpoints"


@pytest.mark.parametrize(
    "outcome",
    [
        asked(service()),
        asked(spilling("3")),
        asked(spilling(internalTrafficPolicy="Local")),
        asked(spilling(), verdict="reject"),
    ],
)
def test_it_says_nothing_where_no_connection_can_spill_over(outcome: Outcome) -> None:
    assert said(outcome, {1: 100, 2: 100}) == []


def test_far_endpoints_are_named_with_the_reason() -> None:
    thing = spilling()
    texts = list(reasons(asked(thing), Known(thing, (PODS,)), NODE))
    far = [text for text in texts if "may overflow to it" in text]
    assert [text.split(":")[0] for text in far] == list(FAR)
    assert all(":8080 is far: " in text for text in far)
    assert not [text for text in texts if "not eligible" in text]
