"""``bpfsvc maps dump``: the command around the views, on maps of a test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bpfsvc.cli import maps as command
from bpfsvc.cli.main import main
from tests.inspect.inspected import web
from tests.inspect.pinned import Maps


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Maps:
    """What the command reads in the place of pinned maps."""
    made = Maps()
    web(made)

    @contextmanager
    def open_pinned(_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(layout=made.layout)

    monkeypatch.setattr(command, "open_pinned", open_pinned)
    monkeypatch.setattr(command, "PinnedReader", lambda _: made)
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command; return exit status, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main.main(["maps", "dump", *words, "--pin-root", str(Path("/nonexistent"))])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.mark.usefixtures("maps")
def test_the_rows_of_one_service_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, errors = run(capsys, "--service", "default/web", "-o", "json")
    assert (status, errors) == (0, "")
    document = json.loads(output)
    assert [row["service"] for row in document["backends"]] == ["default/web:http"] * 2
    assert "counters" not in document


@pytest.mark.usefixtures("maps")
def test_a_service_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, errors = run(capsys, "--service", "default/none")
    assert (status, output) == (1, "")
    assert errors.splitlines() == [
        "Error: the kernel holds no Service default/none",
        "Hint: list them with: bpfsvc maps dump services",
    ]


@pytest.mark.parametrize("output", ["table", "json"])
def test_changes_are_printed_until_it_is_interrupted(
    maps: Maps,
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of a Service that is not there at first; Ctrl-C prints nothing."""
    rounds = iter(range(3))

    def sleep(_: float) -> None:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        maps.service(7, "new", "http")

    monkeypatch.setattr(time, "sleep", sleep)
    status, printed, errors = run(capsys, "--watch", "--service", "default/new", "-o", output)
    assert (status, errors) == (0, "")
    (line,) = printed.splitlines()
    if output == "json":
        change = json.loads(line)
        assert (change["change"], change["map"], change["row"]["name"]) == (
            "added",
            "services",
            "new",
        )
    else:
        assert line.split()[1:5] == ["added", "services", "namespace=default", "name=new"]


@pytest.mark.usefixtures("maps")
def test_watching_as_yaml_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, "--watch", "-o", "yaml")
    assert status == 2
    assert errors.splitlines() == [
        "Error: --watch does not write yaml",
        "Hint: use -o table or -o json",
    ]
