"""The agent's own oom_score_adj."""

from __future__ import annotations

from pathlib import Path

from bpfsvc.agent.memory import set_oom_score


def test_the_score_is_set_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "oom_score_adj"
    path.write_text("0\n")
    assert set_oom_score(-999, path) == ""
    assert path.read_text() == "-999\n"
    path.chmod(0o444)
    assert set_oom_score(-999, path) == ""
    assert set_oom_score(None, tmp_path / "nothing") == ""


def test_a_score_that_cannot_be_set_is_reported(tmp_path: Path) -> None:
    assert set_oom_score(-999, tmp_path / "nothing") == (
        "oomScoreAdj stays as it was: No such file or directory"
    )
