"""``bpfsvc services`` and ``bpfsvc top``: the commands around the views, on maps of a test."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bpfsvc.cli import services as services_command
from bpfsvc.cli import top as top_command
from bpfsvc.cli.main import main
from tests.inspect.busy import CLOSING, OPEN, WEB_BACKENDS, busy_node, connection, count
from tests.inspect.pinned import Maps

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Maps:
    """What the commands read in the place of pinned maps."""
    made = busy_node()
    count(made, 1, 100, 1000, 10000, 1000, 10000)

    @contextmanager
    def open_pinned(_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(layout=made.layout)

    for command in (services_command, top_command):
        monkeypatch.setattr(command, "open_pinned", open_pinned)
        monkeypatch.setattr(command, "PinnedReader", lambda _: made)
    return made


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run a command; return exit status, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main.main([*words, "--pin-root", "/nonexistent"])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def sleeps(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> list[float]:
    """Do a step in each sleep, Ctrl-C after the last; return how long each sleep was to be."""
    left, slept = iter(steps), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    clock = iter(range(100, 10000, 2))
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    return slept


@pytest.mark.usefixtures("maps")
def test_services_are_printed_and_chosen(capsys: Capture) -> None:
    status, output, errors = run(capsys, "services")
    assert (status, errors) == (0, "")
    assert "default/web:http TCP IPv4" in output
    assert "kube-system/dns:53 UDP IPv4" in output
    status, output, _ = run(capsys, "services", "-n", "kube-system", "10.96.0.53", "-o", "json")
    assert status == 0
    assert [service["name"] for service in json.loads(output)["services"]] == ["dns"]


@pytest.mark.usefixtures("maps")
def test_a_service_that_is_not_there_is_one_line_and_a_hint(capsys: Capture) -> None:
    status, output, errors = run(capsys, "services", "web", "none")
    assert (status, output) == (1, "")
    assert errors.splitlines() == [
        "Error: the kernel holds no Service none",
        "Hint: list them with: bpfsvc services",
    ]


@pytest.mark.usefixtures("maps")
def test_no_services_are_one_plain_line_for_people_and_a_document_for_programs(
    capsys: Capture,
) -> None:
    for words in ((), ("--stats", "-o", "wide")):
        printed = run(capsys, "services", "-n", "empty", *words)
        assert printed == (0, "no Services in namespace empty\n", "")
    _, output, _ = run(capsys, "services", "-n", "empty", "-o", "json")
    assert json.loads(output) == {"socket_lb": "host", "services": []}


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["--stats", "--rate"], "--stats and --rate exclude each other", "leave one of them out"),
        (["--rate", "--watch"], "--rate and --watch exclude each other", "use: bpfsvc top"),
        (["--watch", "-o", "yaml"], "--watch does not write yaml", "use -o table or -o json"),
        (["--rate", "--interval", "0"], "Invalid value for '--interval'", "see "),
        (["Web!"], "'Web!' is neither the name of a Service nor an address", "write NAME, "),
    ],
)
@pytest.mark.usefixtures("maps")
def test_what_cannot_be_meant_is_one_line_and_a_hint(
    words: list[str], error: str, hint: str, capsys: Capture
) -> None:
    status, output, errors = run(capsys, "services", *words)
    assert (status, output) == (2, "")
    first, second = errors.splitlines()
    assert first.startswith(f"Error: {error}")
    assert second.startswith(f"Hint: {hint}")


def test_rates_are_what_is_counted_in_the_interval(
    maps: Maps, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = sleeps(monkeypatch, lambda: count(maps, 1, 110, 1100, 12000, 1100, 14000))
    status, output, _ = run(capsys, "services", "web", "--rate", "--interval", "2", "-o", "json")
    assert (status, slept) == (0, [2.0])
    document = json.loads(output)
    assert document["seconds"] == 2
    assert document["services"][0]["backends"][0]["rates"] == {
        **{"connections": 5, "packets": 50, "bytes": 1000},
        **{"reply_packets": 50, "reply_bytes": 2000},
        **{"refused": 0, "unanswered": 0, "unreachable": 0},
    }


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_watch_shows_a_backend_drain(
    maps: Maps, output: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a Service that is not there yet, which is no error."""
    sleeps(
        monkeypatch,
        lambda: connection(maps, 1000, WEB_BACKENDS[0], OPEN),
        lambda: connection(maps, 1000, WEB_BACKENDS[0], CLOSING),
    )
    words = ("web", "later", "--watch", "-o", output)
    status, printed, errors = run(capsys, "services", *words)
    assert (status, errors) == (0, "")
    first, second = printed.splitlines()
    if output == "json":
        changed = json.loads(second)
        assert changed["before"] == {"active": 1, "inactive": 0}
        assert (changed["row"]["active"], changed["row"]["inactive"]) == (0, 1)
    else:
        assert "changed backends service=default/web:http" in first
        assert f"backend={WEB_BACKENDS[0]}" in second
        assert "active=1->0 inactive=0->1" in second


def test_top_prints_as_many_blocks_as_asked_for(
    maps: Maps, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = sleeps(
        monkeypatch,
        lambda: count(maps, 1, 120, 1000, 10000, 1000, 10000),
        lambda: count(maps, 1, 120, 1300, 10000, 1000, 10000),
    )
    status, output, errors = run(capsys, "top", "--count", "2", "--interval", "2")
    assert (status, errors, slept) == (0, "", [2.0, 2.0])
    blocks = output.split("\n\n")
    text = output.splitlines()
    lines = [text[n + 1].split() for n, line in enumerate(text) if line.startswith("default/web")]
    assert [(row[0], row[1]) for row in lines] == [("10", "0"), ("0", "150")]
    assert len(blocks) == 4  # a summary and a table each
    assert "\x1b" not in output


@pytest.mark.usefixtures("maps")
def test_top_without_a_terminal_goes_on_as_plain_text_until_ctrl_c(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps(monkeypatch, lambda: None, lambda: None)
    status, output, errors = run(capsys, "top", "--sort", "errors")
    assert (status, errors) == (0, "")
    assert output.count("SERVICE") == 2
    assert run(capsys, "top", "-n", "none", "--once")[0] == 0


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("maps")
def test_top_draws_on_a_screen_of_its_own_and_leaves_the_terminal_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has no room is cut; Ctrl-C and SIGTERM give the first screen back."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "5")

    def terminate() -> None:
        signal.raise_signal(signal.SIGTERM)

    for last, status in (((), 0), ((terminate,), 143)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        sleeps(monkeypatch, lambda: None, *last)
        with pytest.raises(SystemExit) as ended:
            main.main(["top", "--pin-root", "/nonexistent"])
        assert int(ended.value.code or 0) == status
        text = terminal.getvalue()
        assert text.startswith("\x1b[?1049h")
        assert text.endswith("\x1b[?25h\x1b[?1049l")
        (screen,) = text.split("\x1b[H")[2:]
        lines = screen.split("\x1b[?25h")[0].split("\r\n")
        assert len(lines) == 5
        assert {line[:3] for line in lines} == {"\x1b[K"}
        assert max(len(line.removeprefix("\x1b[K")) for line in lines) == 30
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("command", ["services", "top"])
def test_nothing_loaded_is_the_error_of_maps_dump(
    command: str, capsys: Capture, tmp_path: Path
) -> None:
    blocks = []
    for words in (["maps", "dump"], [command]):
        with pytest.raises(SystemExit) as ended:
            main.main([*words, "--pin-root", str(tmp_path)])
        blocks.append((ended.value.code, *capsys.readouterr()))
    assert blocks[0] == blocks[1]
    assert blocks[0][0] == 1
