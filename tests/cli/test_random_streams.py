"""Saved streams and histories of any content: one line of error, or what can be shown."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.agent.history.changes import History
from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.cli.main import main
from bpfsvc.model.events import encode_event
from tests.inspect.test_events import MADE, REFUSED

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["a\nb\x1b[", 1e15, -1e12, 2**63, 253402300800.0]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.text(), scalars))


@st.composite
def lines(draw: st.DrawFn, *samples: bytes) -> bytes:
    """Return a line that was saved, with one or two of its values in another shape, or bytes."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=60))
    made = json.loads(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 2))):
        within = draw(st.sampled_from([made, *(v for v in made.values() if isinstance(v, dict))]))
        names = sorted(within) or ["x"]
        within[draw(st.sampled_from(names))] = draw(values)
    return json.dumps(made).encode() + b"\n"


EVENTS = st.lists(lines(encode_event(MADE), encode_event(REFUSED)), max_size=4).map(b"".join)
SHOWN = [["-o", "text"], ["-o", "wide"], ["-o", "json"], ["--summary"], ["--last", "2"]]


@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("options", SHOWN, ids=" ".join)
@given(saved=EVENTS)
def test_a_saved_stream_is_shown_or_refused_in_two_lines(options: list[str], saved: bytes) -> None:
    output, errors = io.StringIO(), io.StringIO()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "events"
        path.write_bytes(saved)
        with (
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as ended,
        ):
            main.main(["observe", "--from-file", str(path), *options])
    assert ended.value.code in (0, 2), errors.getvalue()
    if ended.value.code:
        first, second = errors.getvalue().rstrip("\n").split("\n")[-2:]
        assert first.startswith("Error: ")
        assert second.startswith("Hint: ")


CHANGE = (
    b'{"at": 1.5, "services": ["a/b"], "what": "added", "endpoints": {"added": ["10.0.0.1:80"]}}'
)
FAILURE = b'{"at": 1.5, "service": "a/b", "port": "http", "reason": "no_answer", "count": 2}'


@settings(max_examples=300, deadline=None)
@given(saved=st.lists(lines(CHANGE, FAILURE), max_size=4).map(b"".join))
def test_a_history_of_any_content_keeps_no_agent_from_its_start(saved: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "history"
        for name in ("history", "history.failures"):
            path.with_name(name).write_bytes(saved)
        changes, failures = History(path, 1), FailureHistory(path, 1)
        changes.load()
        failures.load()
        assert isinstance(json.loads(changes.json(None)), list)
        assert isinstance(json.loads(failures.json(None)), list)
