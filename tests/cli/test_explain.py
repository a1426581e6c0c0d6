"""``bpfsvc explain``: wrong usage is one line and a hint."""

from __future__ import annotations

import pytest

from bpfsvc.cli.main import main

QUESTION = ("--from", "external", "203.0.113.9", "TCP", "10.96.0.1:80")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for", "3"], "--for is the time of --live"),
        (["--live", "--cases", "x"], "--live watches the packets of this node's agent"),
        (["--live", "--manifests", "x"], "--live watches the packets of this node's agent"),
    ],
)
def test_live_is_for_a_running_agent(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["explain", *QUESTION, *words])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.splitlines()[0] == f"Error: {message}"
    assert len(printed.err.splitlines()) == 2
