"""``bpfsvc observe``: saved streams, wrong usage, and what a command without an agent says."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from bpfsvc.cli.main import main
from bpfsvc.model.events import Event, encode_event
from tests.inspect.test_events import MADE, REFUSED

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run the command; return exit status, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main.main(["observe", *words])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A stream that was saved."""
    path = tmp_path / "events.json"
    lost = Event(1769824623.0, lost=3, lost_by="kernel")
    path.write_bytes(b"".join(map(encode_event, (MADE, lost, REFUSED))))
    return str(path)


def test_a_saved_stream_is_shown_with_filters(capsys: Capture, saved: str) -> None:
    status, output, errors = run(capsys, "--from-file", saved, "--verdict", "refused")
    assert (status, errors) == (0, "lost 3 events: the agent was too slow for the kernel\n")
    assert "no endpoint serves" in output
    assert "shop/web" not in output


def test_a_saved_stream_is_replayed_as_it_was(capsys: Capture, saved: str) -> None:
    status, output, errors = run(capsys, "--from-file", saved, "-o", "json")
    assert (status, output.encode(), errors) == (0, Path(saved).read_bytes(), "")


def test_the_last_events_and_a_time_are_chosen(capsys: Capture, saved: str) -> None:
    _, output, _ = run(capsys, "--from-file", saved, "-o", "json", "--last", "1")
    assert output.encode() == encode_event(REFUSED)
    _, output, _ = run(
        capsys, "--from-file", saved, "-o", "json", "--until", "2026-01-31T01:57:02.6Z"
    )
    assert output.encode() == encode_event(MADE)


def test_a_stream_may_come_by_standard_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encode_event(MADE))))
    assert run(capsys, "--from-file", "-", "-o", "json")[1].encode() == encode_event(MADE)


def test_a_summary_has_a_line_for_each_backend(capsys: Capture, saved: str) -> None:
    status, output, errors = run(capsys, "--from-file", saved, "--summary")
    assert (status, errors) == (0, "lost 3 events: the agent was too slow for the kernel\n")
    assert [line.split()[:2] for line in output.splitlines() if "BACKEND" not in line] == [
        ["other/dns:53", "UDP"],
        ["-", "0"],
        ["1", "refused:"],
        ["shop/web:http", "TCP"],
        ["10.244.2.4:8080", "(shop/web-7b5c"],
    ]


def test_a_summary_of_nothing_says_so(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    printed = run(capsys, "--from-file", str(tmp_path / "empty"), "--summary")
    assert printed == (0, "", "no such event was seen\n")


def test_a_line_that_is_no_event_is_named(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(encode_event(MADE) + b"{}\n")
    status, _, errors = run(capsys, "--from-file", str(path))
    assert status == 2
    assert errors.splitlines() == [
        f"Error: {path}, line 2: not an event: Object missing required field `time`",
        "Hint: save events with: bpfsvc observe -o json",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-file", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (["--from-file", "x", "--follow"], "--follow and --from-file exclude each other"),
        (["--from-file", "x", "--for", "3"], "--for and --from-file exclude each other"),
        (["--summary", "-o", "json"], "--summary is text"),
        (["--since", "1m", "--until", "2m"], "--since is later than --until"),
        (["--since", "soon"], "'soon' is not a time"),
        (["--port", "http"], "'http' is not a port"),
        (["--not-ip", "10.0.0"], "'10.0.0' is not an address or a network"),
        (["--verdict", "lost"], "there is no verdict 'lost'"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(
    capsys: Capture, words: list[str], message: str
) -> None:
    status, output, errors = run(capsys, *words)
    assert (status, output) == (2, "")
    assert errors.splitlines()[0] == f"Error: {message}"
    assert len(errors.splitlines()) == 2


def test_without_an_agent_it_says_so(capsys: Capture, tmp_path: Path) -> None:
    status, _, errors = run(capsys, "--pin-root", str(tmp_path))
    assert status == 1
    assert errors.splitlines() == [
        "Error: no agent answers on this node: Connection refused",
        "Hint: start it with: bpfsvc run, or name its place with --pin-root",
    ]
