"""What arrives in pieces of any size is cut into the same lines and items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.kube import decoding, object_tracker, stream
from bpfsvc.kube.errors import InvalidResponse, Refused, Unreachable

COMPACT = (",", ":")


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def text(items: list[Any], *, token: str = "", **style: Any) -> bytes:
    metadata = {"resourceVersion": "7"} | ({"continue": token} if token else {})
    body = {"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return json.dumps(body, **({"separators": COMPACT} | style)).encode() + b"\n"


def item(name: str, note: str = "") -> Any:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"note": note}}


def read(source: Iterable[bytes]) -> list[Any]:
    page = stream.List(source)
    items = [json.loads(text) for text in page.items()]
    assert page.head.version == "7"
    return items


NASTY = '},{"metadata":{"name":"no"}}]}\n'


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), max_size=6), st.integers(1, 200), st.booleans())
def test_items_are_cut_wherever_pieces_end(notes: list[str], size: int, pretty: bool) -> None:
    """A list has the same items however it is cut and written, with any text inside."""
    items = [item(str(number), note + NASTY) for number, note in enumerate(notes)]
    style: dict[str, Any] = {"indent": 1, "separators": None} if pretty else {}
    assert read(pieces(text(items, **style), size)) == items


@pytest.mark.parametrize("size", [1, 40, 65536])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_items_that_begin_otherwise_are_found(size: int, count: int) -> None:
    """Items that name their kind first are separated by the parser."""
    items = [{"kind": "Service", **item(str(number))} for number in range(count)]
    assert read(pieces(text(items), size)) == items


def test_a_long_list_is_cut_while_it_arrives() -> None:
    """The first items come before the rest of the list was read."""
    items = [item(str(number)) for number in range(100)]
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces(text(items), 500):
            taken += len(piece)
            yield piece

    next(stream.List(counted()).items())
    assert taken <= 1000


@pytest.mark.parametrize("size", [7, 65536])
@pytest.mark.parametrize("kept", [0.05, 0.5, 0.98])
def test_a_list_that_breaks_off_is_no_list(size: int, kept: float) -> None:
    """Without its end, a list is refused as a whole."""
    whole = text([item(str(number)) for number in range(9)])
    with pytest.raises(Unreachable):
        read(pieces(whole[: int(len(whole) * kept)], size))


@pytest.mark.parametrize("body", [b"", b"<html>Sign in</html>", b'{"kind":"Status"}', b"[]"])
def test_an_answer_that_is_no_list_is_refused(body: bytes) -> None:
    """An answer of another program is not taken for a list."""
    with pytest.raises(InvalidResponse):
        read([body])


def test_a_head_has_the_token_of_the_next_page() -> None:
    """The token and the version come before the items."""
    page = stream.List([text([item("a")], token="xyz")])
    assert len(list(page.items())) == 1
    assert page.head == ("ServiceList", "v1", "7", "xyz")


def test_items_are_given_the_kind_of_their_list() -> None:
    """An item lacks kind and version, which the list has; they are added without parsing."""
    head = decoding.Head("ServiceList", "v1", "7", "")
    identity, whole = object_tracker.with_kind(json.dumps(item("a")).encode(), head)
    assert identity == ("default", "a")
    assert json.loads(whole) == {"kind": "Service", "apiVersion": "v1", **item("a")}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9).map(lambda raw: raw.replace(b"\n", b"."))), st.integers(1, 9))
def test_lines_are_cut_wherever_pieces_end(texts: list[bytes], size: int) -> None:
    """A watch has the same lines however it is cut, except an incomplete last one."""
    data = b"".join(text + b"\n" for text in texts) + b"broken"
    read = [line for group in stream.lines(pieces(data, size)) for line in group]
    assert read == [text for text in texts if text.strip()]


def test_lines_that_arrive_together_stay_together() -> None:
    """A burst makes one group, and so one batch."""
    assert list(stream.lines([b"a", b"\nb\nc", b"\n"])) == [[b"a", b"b"], [b"c"]]


# -- events --


def line(kind: str, body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


def test_an_event_has_what_a_watch_needs() -> None:
    """Name, version and the time of the cause are read; the object stays text."""
    body = item("a")
    body["metadata"] |= {
        "resourceVersion": "9",
        "annotations": {
            "endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:01:00.5Z",
            "other": 1,
        },
    }
    event = decoding.event(line("ADDED", body))
    assert event._replace(text=b"") == ("ADDED", b"", "default", "a", "9", False, 60.5)
    assert json.loads(event.text) == body


@pytest.mark.parametrize("written", [None, 5, "", "yesterday"])
def test_a_trigger_that_is_no_time_is_none(written: object) -> None:
    """The API server does not check annotations; a wrong one is ignored."""
    body = {"metadata": {"annotations": {decoding._TRIGGER: written}}}
    assert decoding.event(line("ADDED", body)).trigger == 0.0


def test_the_mark_of_a_watch_list_is_known() -> None:
    """The bookmark that ends the initial events is recognised."""
    marked = {"metadata": {"resourceVersion": "5", "annotations": {decoding.INITIAL_END: "true"}}}
    plain = {"metadata": {"resourceVersion": "5"}}
    assert decoding.event(line("BOOKMARK", marked)).ends_initial
    assert not decoding.event(line("BOOKMARK", plain)).ends_initial


def test_an_error_in_a_watch_is_a_refusal() -> None:
    """The code that matters is in the Status, not in HTTP."""
    status = {"kind": "Status", "message": "too old\n resource version", "code": 410}
    with pytest.raises(Refused) as caught:
        decoding.event(line("ERROR", status))
    assert (caught.value.code, caught.value.message) == (
        410,
        "too old resource version (code 410)",
    )


@pytest.mark.parametrize("broken", [b"{", b"\xff", b"[]", b'{"type":"ADDED"}', b"null", b"hello"])
def test_a_line_that_is_no_event_is_refused(broken: bytes) -> None:
    """Garbage leads to a new list, not to a crash."""
    with pytest.raises(InvalidResponse):
        decoding.event(broken)


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("", None, 0.0),
        ("5", None, 5.0),
        ("", {"retryAfterSeconds": 3}, 3.0),
        ("1", {"retryAfterSeconds": 3}, 3.0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None, 0.0),
        ("999999", None, 300.0),
        ("-1", {"retryAfterSeconds": -3}, 0.0),
    ],
)
def test_how_long_a_server_asks_to_wait(header: str, details: Any, seconds: float) -> None:
    """Header and Status can both have it; there is an upper bound."""
    body = json.dumps({"kind": "Status", "details": details}).encode()
    assert decoding.refusal(body, 429, header).retry_after == seconds


def test_an_error_in_plain_text_is_kept() -> None:
    """A proxy between node and server may answer with plain text."""
    assert decoding.refusal(b"bad gateway\n", 502).message == "bad gateway (code 502)"
