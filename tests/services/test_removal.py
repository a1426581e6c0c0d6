"""What becomes of connections to endpoints that leave: from annotations to entries."""

from __future__ import annotations

from socket import IPPROTO_TCP, IPPROTO_UDP

import pytest

from bpfsvc.base.address import pack
from bpfsvc.model import Service
from bpfsvc.services.entries import ServiceEntries
from bpfsvc.services.rules.view import NOTHING, ServiceView, evaluate
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING, read_scheduling
from bpfsvc.services.scheduling.removal import Members, OnRemoval, parse_on_removal, parse_seconds
from tests.services.objects import CONFIG, HTTP, NODE, endpoint_slice, service

DNS = {"name": "dns", "port": 53, "protocol": "UDP"}
SLICE = endpoint_slice("10.0.0.1 here", "10.0.0.2 there")


def leaving(**annotations: str) -> Service:
    return service(
        ports=[HTTP, DNS],
        annotations={
            f"bpfsvc.io/{name.replace('_', '-')}": text for name, text in annotations.items()
        },
    )


def view(**annotations: str) -> ServiceView:
    thing = leaving(**annotations)
    scheduling, faults = read_scheduling(thing, [SLICE])
    assert faults == []
    return evaluate(thing, [SLICE], NODE, CONFIG, scheduling)


def removals(entries: ServiceEntries, protocol: int) -> set[int]:
    return {
        policies.removal
        for port, one in entries.items()
        if port.protocol == protocol
        for frontend, policies in one.frontends.items()
        if frontend.port
    }


@pytest.mark.parametrize("kind", OnRemoval)
def test_the_entries_of_tcp_say_what_the_annotation_says(kind: OnRemoval) -> None:
    found = view(on_removal=kind.name.lower())
    assert removals(found.entries, IPPROTO_TCP) == {kind}
    assert removals(found.entries, IPPROTO_UDP) == {OnRemoval.KEEP}


def test_without_the_annotation_nothing_is_remembered() -> None:
    thing = service()
    assert read_scheduling(thing, [SLICE]) == (USUAL_SCHEDULING, [])
    assert evaluate(thing, [SLICE], NODE, CONFIG).summary is NOTHING


@pytest.mark.parametrize(
    ("annotations", "seconds"),
    [
        ({"on_removal": "reset"}, 0),
        ({"on_removal": "reset", "drain_seconds": "5"}, 0),
        ({"on_removal": "drain"}, 30),
        ({"on_removal": " drain ", "drain_seconds": " 5 "}, 5),
    ],
)
def test_the_members_are_all_endpoints_of_tcp_with_the_time(
    annotations: dict[str, str], seconds: int
) -> None:
    members = view(**annotations).summary.members
    assert isinstance(members, Members)
    assert members.seconds == seconds
    ((port, places),) = members.endpoints.items()
    assert port.port_name == "http"
    assert places == {(pack("10.0.0.1"), 8080), (pack("10.0.0.2"), 8080)}


@pytest.mark.parametrize("state", ["unready", "draining", "dead"])
def test_an_endpoint_that_takes_nothing_new_is_still_a_member(state: str) -> None:
    thing = leaving(on_removal="reset")
    slices = [endpoint_slice("10.0.0.1 here", f"10.0.0.2 there {state}")]
    scheduling, _ = read_scheduling(thing, slices)
    found = evaluate(thing, slices, NODE, CONFIG, scheduling)
    assert found.summary.members
    ((_, places),) = found.summary.members.endpoints.items()
    assert len(places) == 2


def test_of_a_bad_value_the_last_good_one_stays() -> None:
    good, _ = read_scheduling(leaving(on_removal="drain", drain_seconds="5"), [])
    bad, faults = read_scheduling(leaving(on_removal="wait", drain_seconds="0"), [], good)
    assert bad.removal == good.removal
    assert faults == [
        "annotation bpfsvc.io/on-removal: 'wait' must be keep, drain or reset;"
        " the last good value stays in force",
        "annotation bpfsvc.io/drain-seconds: seconds must be 1 to 86400, not '0';"
        " the last good value stays in force",
    ]


@pytest.mark.parametrize("text", ["", "Reset", "keep,drain", "x" * 1000])
def test_a_word_that_is_none_of_the_three_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="must be keep, drain or reset") as error:
        parse_on_removal(text)
    assert len(str(error.value)) < 100


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "86401", "30s", "\u0663", "9" * 5000])
def test_seconds_that_are_out_of_range_are_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(ValueError, match="seconds must be 1 to 86400") as error:
        parse_seconds(text)
    assert len(str(error.value)) < 100
