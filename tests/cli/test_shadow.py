"""The options of shadow mode, and what cannot be combined."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bpfsvc.cli.main import main


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--for=10m"], "--for has no effect without --shadow"),
        (["--shadow", "--init-only"], "--shadow changes nothing on this node"),
        (["--shadow", "--cleanup"], "--shadow changes nothing on this node"),
        (["--shadow", "--for=0s"], "--for must be longer than nothing, not 0s"),
        (["--shadow", "--shadow-tolerance=-1s"], "--shadow-tolerance must be longer than nothing"),
        (["--shadow", "--for=soon"], "expected a duration such as 30s or 1h30m, got 'soon'"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_usage(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, ["run", *words])
    assert done.exit_code == 2
    assert complaint in done.output
