"""``bpfsvc observe``: which events the filters show, and what is printed of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from bpfsvc.base.errors import UsageError
from bpfsvc.inspect.events.filters import FILTERS, WORDS, event_filter
from bpfsvc.inspect.events.texts import WIDTH, event_lines, loss_text, wide_line
from bpfsvc.inspect.events.times import point_in_time
from bpfsvc.model.events import (
    Event,
    EventEnd,
    EventService,
    NotAnEvent,
    decode_event,
    encode_event,
)

NOW = datetime(2026, 1, 31, 3, 10, tzinfo=timezone(timedelta(hours=1)))

MADE = Event(
    1769824622.5,
    node="node-1",
    kind="made",
    path="fast_path",
    protocol="TCP",
    service=EventService("shop", "web", "http"),
    client=EventEnd("10.244.1.5", 40112, "shop/cart-6d9f", "node-1"),
    frontend=EventEnd("10.96.0.10", 80),
    backend=EventEnd("10.244.2.4", 8080, "shop/web-7b5c", "node-2"),
)
REFUSED = Event(
    1769824623.25,
    node="node-1",
    kind="refused",
    reason="no_endpoints",
    path="tc",
    protocol="UDP",
    service=EventService("other", "dns", "53"),
    client=EventEnd("2001:db8::9", 51200),
    frontend=EventEnd("fd96::1", 53),
)

VALUES = {
    "namespace": ("shop", "other"),
    "service": ("shop/web:http", "dns"),
    "pod": ("shop/web-7", None),
    "ip": ("10.244.0.0/16", "2001:db8::9"),
    "port": ("8080", "51200"),
    "protocol": ("tcp", "UDP"),
    "verdict": ("forwarded", "refused"),
    "kind": ("made", "refused"),
    "reason": (None, "no-endpoints"),
    "path": ("fast-path", "tc"),
    "node": ("node-2", None),
}
"""By filter: a value that only the first event has, and one that only the second has."""


def plain(text: str, _: str) -> str:
    return text


def shown(wanted: dict[str, list[str]], unwanted: dict[str, list[str]]) -> list[Event]:
    test = event_filter(wanted, unwanted)
    return [event for event in (MADE, REFUSED) if test(event)]


def test_each_filter_is_tried() -> None:
    assert VALUES.keys() == {*FILTERS}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_and_its_opposite_divide_the_events(name: str) -> None:
    for value, event in zip(VALUES[name], (MADE, REFUSED), strict=True):
        if value is None:
            continue
        assert shown({name: [value]}, {}) == [event]
        assert event not in shown({}, {name: [value]})
        assert len(shown({}, {name: [value]})) == 1


def test_one_of_the_values_of_each_filter_is_needed() -> None:
    assert shown({"port": ["8080", "51200"]}, {}) == [MADE, REFUSED]
    assert shown({"port": ["8080", "51200"], "protocol": ["udp"]}, {}) == [REFUSED]
    assert shown({"port": ["8080"], "protocol": ["udp"]}, {}) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ip", "10.0.0", "'10.0.0' is not an address or a network"),
        ("port", "http", "'http' is not a port"),
        ("port", "0", "'0' is not a port"),
        *((name, "nothing", f"there is no {name} 'nothing'") for name in WORDS),
    ],
)
def test_a_malformed_value_is_one_line(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        event_filter({name: [value]}, {})
    assert error.value.message == message
    assert error.value.hint


def test_what_has_chosen_the_backend_is_in_the_text() -> None:
    by = msgspec.structs.replace(MADE, chosen_by="session affinity")
    assert "; by session affinity" in " ".join(event_lines(by, UTC, plain).split())


@pytest.mark.parametrize(
    ("path", "text"), [("tc", "after less than 10 ms"), ("socket", "after 0.250 ms")]
)
def test_only_the_end_of_a_socket_has_an_exact_time(path: str, text: str) -> None:
    ended = msgspec.structs.replace(MADE, kind="ended", path=path, took_ms=0.25)
    assert text in " ".join(event_lines(ended, UTC, plain).split())


def test_an_event_is_the_same_after_it_was_a_line() -> None:
    for event in (MADE, REFUSED, Event(1.5, lost=12, lost_by="reader")):
        assert decode_event(encode_event(event)) == event


def test_what_is_not_known_is_not_in_the_line() -> None:
    assert b"backend" not in encode_event(
        Event(1.0, kind="refused", client=EventEnd("10.0.0.1", 5))
    )


@pytest.mark.parametrize(
    "line", [b"", b"nonsense", b"[]", b'{"kind": "made"}', b'{"time": 1.5, "kind": "moved"}']
)
def test_another_line_is_no_event(line: bytes) -> None:
    with pytest.raises(NotAnEvent):
        decode_event(line)


def test_text_has_names_and_folds() -> None:
    assert event_lines(MADE, UTC, plain) == (
        "01:57:02.500 made TCP shop/cart-6d9f:40112 -> shop/web:http -> shop/web-7b5c:8080;"
        " fast path"
    )
    first, second = event_lines(REFUSED, UTC, plain).splitlines()
    assert first == (
        "01:57:03.250 refused UDP [2001:db8::9]:51200 -> other/dns:53 ([fd96::1]:53);"
        " no endpoint serves this"
    )
    assert len(first) == WIDTH
    assert second == "             client"


def test_wide_text_has_all_in_one_line() -> None:
    assert wide_line(MADE, UTC, plain) == (
        "2026-01-31T01:57:02.500000+00:00 node-1 made TCP"
        " 10.244.1.5:40112 (shop/cart-6d9f on node-1) -> shop/web:http (10.96.0.10:80)"
        " -> 10.244.2.4:8080 (shop/web-7b5c on node-2); forwarded; by fast_path"
    )


def test_only_the_kind_is_colored() -> None:
    def paint(text: str, color: str) -> str:
        return f"<{color}>{text}</{color}>"

    assert "<red>refused</red> UDP" in event_lines(REFUSED, UTC, paint)
    assert wide_line(REFUSED, UTC, paint).count("<red>") == 1


def test_a_loss_says_how_many_and_who_was_slow() -> None:
    assert loss_text(Event(1.0, lost=1, lost_by="kernel")).startswith("lost 1 event: the agent")
    assert loss_text(Event(1.0, lost=9, lost_by="reader")).startswith("lost 9 events: this command")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", datetime(2026, 1, 31, 3, 0, tzinfo=NOW.tzinfo)),
        ("1.5h", datetime(2026, 1, 31, 1, 40, tzinfo=NOW.tzinfo)),
        ("02:57", datetime(2026, 1, 31, 2, 57, tzinfo=NOW.tzinfo)),
        ("23:50:10", datetime(2026, 1, 30, 23, 50, 10, tzinfo=NOW.tzinfo)),
        ("2026-01-30T02:57:00Z", datetime(2026, 1, 30, 2, 57, tzinfo=UTC)),
        ("2026-01-30 02:57", datetime(2026, 1, 30, 2, 57, tzinfo=NOW.tzinfo)),
    ],
)
def test_times_are_read_as_people_write_them(text: str, at: datetime) -> None:
    assert point_in_time(text, NOW) == at.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "25:00", "5 minutes", "2026-13-01"])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        point_in_time(text, NOW)


def event_of(**fields: Any) -> Event:
    return decode_event(encode_event(Event(1.0, kind="made", **fields)))


def test_a_sample_and_a_time_are_told() -> None:
    text = event_lines(event_of(sample=4, took_ms=1024.4), UTC, plain)
    assert text.endswith("; after 1024 ms; one of 4")
    assert "after 0.412 ms" in event_lines(event_of(took_ms=0.412), UTC, plain)


def test_the_length_of_a_short_connection_is_not_told_more_exactly_than_it_is_known() -> None:
    short = Event(1.0, kind="ended", reason="closed", took_ms=0.0)
    assert "after less than 10 ms; it was" in event_lines(short, UTC, plain)
    longer = Event(1.0, kind="ended", reason="closed", took_ms=2012.4)
    assert "after 2012 ms;" in event_lines(longer, UTC, plain)
