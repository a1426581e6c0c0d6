"""What ``bpfsvc explain`` says about the choice among several endpoints."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.explain.answer import Outcome
from bpfsvc.explain.question import question
from bpfsvc.explain.reasons import reasons
from bpfsvc.services.applied import applied
from bpfsvc.services.cache import Known
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling import read_scheduling
from bpfsvc.services.view import evaluate
from tests.services.objects import CONFIG, NODE, endpoint_slice, frontend, service

VIP = frontend("10.96.0.1 80")
ONE, TWO, THREE = ((pack(f"10.0.0.{number}"), 8080) for number in (1, 2, 3))
SLICE = endpoint_slice("10.0.0.1 there", "10.0.0.2 there", "10.0.0.3 there")


def said(
    scheduler: str, weights: str = "", *, verdict: str = "dnat", backend: Place = TWO, **spec: str
) -> list[str]:
    """Return the reasons about a Service of three endpoints, after the first three."""
    texts = {"bpfsvc.io/scheduler": scheduler, "bpfsvc.io/weights": weights}
    thing = service(annotations={name: text for name, text in texts.items() if text}, **spec)
    scheduling, _ = read_scheduling(thing, [SLICE])
    ((port, entries),) = evaluate(thing, [SLICE], NODE, CONFIG, scheduling).entries.items()
    slots = [(one, 1 + at) for at, one in enumerate(entries.backends)]
    owner = applied(port, 80, 1, 1, slots, entries.frontends, entries.extra)
    asked = question("pod", "10.244.0.9", "TCP", "10.96.0.1", 80)
    outcome = Outcome(verdict, asked, VIP, owner, "pod", frozenset(), backend)
    return list(reasons(outcome, Known(thing, (SLICE,)), NODE))[3:]


CASES = {
    "": "scheduler random: one of 3 endpoints at random",
    "rr": "scheduler rr: 3 endpoints take turns",
    "sh,sh-port": "scheduler sh,sh-port: the client's address and port decide among 3 endpoints",
    "mh,mh-port": "scheduler mh,mh-port: the client's address and port decide among 3 endpoints",
}


@pytest.mark.parametrize(("scheduler", "line"), CASES.items(), ids=map(str, CASES))
def test_the_scheduler_is_named(scheduler: str, line: str) -> None:
    assert said(scheduler) == ["endpoints see the address of the client", line]


def test_weights_are_said_to_count() -> None:
    assert said("wrr", "10.0.0.1=2")[-1] == "scheduler wrr: 3 endpoints take turns, by weight"
    assert said("", "10.0.0.1=2")[-1] == (
        "scheduler random: one of 3 endpoints at random, by weight"
    )


@pytest.mark.parametrize("scheduler", ["sh", "dh", "mh"])
def test_what_an_address_always_gets_is_named(scheduler: str) -> None:
    assert said(scheduler)[-1] == "that is 10.0.0.2:8080 for this client"


def test_a_client_with_affinity_may_get_another_one() -> None:
    texts = said("sh", sessionAffinity="ClientIP")
    assert not any("for this client" in text for text in texts)


def test_endpoints_of_weight_0_are_named() -> None:
    texts = said("rr", "10.0.0.1=0")
    assert texts[1:] == [
        "scheduler rr: 2 endpoints take turns",
        "10.0.0.1:8080 is not chosen: its weight is 0",
    ]


def test_a_place_without_an_endpoint_rejects() -> None:
    texts = said("sh", "10.0.0.1=0", verdict="reject", backend=(b"", 0))
    assert (
        texts[1] == "scheduler sh: the place of this client has an endpoint of weight 0: rejected"
    )


def test_all_endpoints_may_have_weight_0() -> None:
    texts = said("rr", "node/there=0", verdict="reject", backend=(b"", 0))
    assert texts[0] == "all endpoints for such clients have weight 0: rejected"
    assert [text for text in texts if "its weight is 0" in text] == [
        f"10.0.0.{number}:8080 is not chosen: its weight is 0" for number in (1, 2, 3)
    ]
