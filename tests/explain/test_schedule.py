"""What ``bpfsvc explain`` says about the choice among several endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.explain.answer import Outcome
from bpfsvc.explain.question import question
from bpfsvc.explain.reasons import reasons
from bpfsvc.explain.removal import removal_reasons
from bpfsvc.explain.schedule import locality_reasons, share_reasons
from bpfsvc.model import Service
from bpfsvc.services.cache import Known
from bpfsvc.services.entries import Place
from bpfsvc.services.plans.applied import applied
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from bpfsvc.services.scheduling.slow_start import NO_SHARES, Shares
from tests.services.objects import CONFIG, NODE, endpoint_slice, frontend, service

VIP = frontend("10.96.0.1 80")
ONE, TWO, THREE = ((pack(f"10.0.0.{number}"), 8080) for number in (1, 2, 3))
LEAVES = "when an endpoint leaves the Service, connections to it are reset"
SLICE = endpoint_slice("10.0.0.1 there", "10.0.0.2 there", "10.0.0.3 there")


def said(
    scheduler: str, weights: str = "", *, verdict: str = "dnat", backend: Place = TWO, **spec: str
) -> list[str]:
    """Return the reasons about a Service of three endpoints, after the first three."""
    outcome, known = asked(scheduler, weights, verdict=verdict, backend=backend, **spec)
    return list(reasons(outcome, known, NODE))[3:]


def asked(
    scheduler: str,
    weights: str = "",
    *,
    verdict: str = "dnat",
    backend: Place = TWO,
    client: str = "pod",
    **spec: str,
) -> tuple[Outcome, Known]:
    """Return what the programs make of a question about it, and the objects."""
    texts = {"bpfsvc.io/scheduler": scheduler, "bpfsvc.io/weights": weights}
    thing = service(annotations={name: text for name, text in texts.items() if text}, **spec)
    outcome = outcome_of(thing, NO_SHARES, verdict, backend)
    return outcome._replace(client=client), Known(thing, (SLICE,))


def outcome_of(
    thing: Service, shares: Shares, verdict: str = "dnat", at: Place = TWO, **others: Any
) -> Outcome:
    """Return what becomes of a packet of a pod to a Service of three endpoints."""
    scheduling, _ = read_scheduling(thing, [SLICE])
    scheduling = scheduling._replace(shares=shares, **others)
    ((port, entries),) = evaluate(thing, [SLICE], NODE, CONFIG, scheduling).entries.items()
    slots = [(backend, 1 + at) for at, backend in enumerate(entries.backends)]
    owner = applied(port, 80, 1, 1, slots, entries.frontends, entries.extra)
    asked = question("pod", "10.244.0.9", "TCP", "10.96.0.1", 80)
    return Outcome(verdict, asked, VIP, owner, "pod", frozenset(), at)


CASES = {
    "": "scheduler random: one of 3 endpoints at random",
    "rr": "scheduler rr: 3 endpoints take turns",
    "sh,sh-port": "scheduler sh,sh-port: the client's address and port decide among 3 endpoints",
    "lblc": (
        "scheduler lblc: the one chosen last for this address, or the least loaded of 3, by weight"
    ),
    "lblcr": (
        "scheduler lblcr: the least loaded of the endpoints that this address has, or of 3,"
        " by weight"
    ),
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


KEPT: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "nothing yet": ((), {}, "has no endpoint yet: it gets the least loaded of all"),
    "one that is gone": ((9,), {}, "had is gone or of weight 0: it gets the least loaded of all"),
    "one of weight 0": ((3,), {"weights": "10.0.0.1=0"}, "had is gone or of weight 0: it gets"),
    "the one chosen": ((2,), {}, "10.96.0.1 has 10.0.0.2:8080, and no other one is needed now"),
    "one that is overloaded": ((1, 3), {}, "has 10.0.0.1:8080, 10.0.0.3:8080: overloaded (more"),
    "one, with affinity": ((1,), {"sessionAffinity": "ClientIP"}, "for clients who come the first"),
    "one, for the node": ((1,), {"client": "node"}, "processes of the node get the least loaded"),
}


@pytest.mark.parametrize("scheduler", ["lblc", "lblcr"])
@pytest.mark.parametrize(("kept", "how", "text"), KEPT.values(), ids=KEPT)
def test_what_the_address_keeps_is_named_and_why_it_gets_another_one(
    scheduler: str, kept: tuple[int, ...], how: dict[str, Any], text: str
) -> None:
    """The ids of the counters are 1, 2 and 3 in the order of slots."""
    outcome, _ = asked(scheduler, **how)
    (line,) = locality_reasons(outcome, lambda _entry: kept)
    assert text in line


def test_with_other_schedulers_nothing_is_said_of_that() -> None:
    outcome, _ = asked("wlc")
    assert list(locality_reasons(outcome, lambda _entry: (1,))) == []


@pytest.mark.parametrize("scheduler", ["sh", "dh", "mh"])
def test_what_an_address_always_gets_is_named(scheduler: str) -> None:
    assert said(scheduler)[-1] == "that is 10.0.0.2:8080 for this client"


def test_the_endpoint_of_the_highest_weight_is_named() -> None:
    assert said("fo", "10.0.0.2=9")[-1] == (
        "scheduler fo: the one of 3 endpoints with the highest weight, 10.0.0.2:8080"
    )


def test_a_client_with_affinity_may_get_another_one() -> None:
    texts = said("sh", sessionAffinity="ClientIP")
    assert not any("for this client" in text for text in texts)


def test_endpoints_of_weight_0_are_named() -> None:
    texts = said("rr", "10.0.0.1=0")
    assert texts[1:] == [
        "scheduler rr: 2 endpoints take turns",
        "10.0.0.1:8080 is not chosen: its weight is 0",
    ]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("away", "is not chosen: connections to it failed (quarantine)"),
        ("trial", "is on trial after a quarantine: it gets one new connection at a time"),
    ],
)
def test_an_endpoint_in_quarantine_or_on_trial_is_named(state: str, text: str) -> None:
    thing = service(annotations={"bpfsvc.io/quarantine": "1 failure/10s for 30s"})
    out: dict[str, Any] = {state: (ONE,)}
    outcome = outcome_of(thing, NO_SHARES, **out)
    texts = reasons(outcome, Known(thing, (SLICE,)), NODE, (), {ONE: state == "trial"})
    assert list(texts)[3:] == [
        "endpoints see the address of the client",
        "scheduler random: one of 2 endpoints at random",
        f"10.0.0.1:8080 {text}",
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


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("random", ["10.0.0.1:8080 is new: its share is 15 % of the usual (slow start)"]),
        ("wrr", ["10.0.0.1:8080 is new: its share is 15 % of the usual (slow start)"]),
        ("mh", ["10.0.0.1:8080 is new: its share is 15 % of the usual (slow start)"]),
        ("sh", []),
        ("fo", []),
    ],
)
def test_the_share_of_a_new_endpoint_is_named_where_it_grows(
    scheduler: str, expected: list[str]
) -> None:
    thing = service(annotations={"bpfsvc.io/scheduler": scheduler})
    shares = {ONE[0]: 3, pack("10.0.0.9"): 5}
    assert list(share_reasons(outcome_of(thing, shares), shares)) == expected
    assert list(share_reasons(outcome_of(thing, NO_SHARES), NO_SHARES)) == []


@pytest.mark.parametrize(
    ("said", "seconds", "expected"),
    [
        ({}, 30, []),
        ({"on-removal": "keep"}, 30, []),
        ({"on-removal": "reset"}, 30, [f"{LEAVES} at once (bpfsvc.io/on-removal: reset)"]),
        ({"on-removal": "drain"}, 60, [f"{LEAVES} after 60 s (bpfsvc.io/on-removal: drain)"]),
        (
            {"on-removal": "drain"},
            None,
            [
                f"{LEAVES} after the time that bpfsvc.io/drain-seconds says"
                " (bpfsvc.io/on-removal: drain)"
            ],
        ),
    ],
)
def test_what_becomes_of_connections_to_an_endpoint_that_leaves_is_one_line(
    said: dict[str, str], seconds: int | None, expected: list[str]
) -> None:
    thing = service(annotations={f"bpfsvc.io/{name}": text for name, text in said.items()})
    assert list(removal_reasons(outcome_of(thing, NO_SHARES), seconds)) == expected


def test_datagrams_are_not_reset() -> None:
    tcp = outcome_of(service(annotations={"bpfsvc.io/on-removal": "reset"}), NO_SHARES)
    udp = tcp._replace(frontend=frontend("10.96.0.1 80 UDP"))
    owner = tcp.owner._replace(flat_frontends=(udp.frontend, tcp.policies))
    assert list(removal_reasons(udp._replace(owner=owner), 30)) == []
