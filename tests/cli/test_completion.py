"""What a shell offers after TAB where the node has no maps; tests/lab/test_completion.py: with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import bpfsvc
from bpfsvc.cli.main import COMMANDS, main


def offered(*typed: str) -> list[str]:
    """Return what is offered for the last word."""
    completion = ShellComplete(main, {}, "bpfsvc", "_BPFSVC_COMPLETE")
    *before, begun = typed
    return [item.value for item in completion.get_completions(before, begun)]


def in_bash(*typed: str) -> list[str]:
    """Return what bash offers for the last word, by the file that the package installs."""
    root = Path(bpfsvc.__file__).parent
    words = " ".join(f"'{word}'" for word in ("bpfsvc", *typed))
    script = (
        f"source {root}/share/completion/bash/bpfsvc;"
        f" COMP_WORDS=({words}); COMP_CWORD={len(typed)};"
        " _bpfsvc_completion bpfsvc; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": path, "PYTHONPATH": str(root.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_offered_without_an_import_of_any() -> None:
    assert offered("") == [*COMMANDS]
    assert offered("s") == [name for name in COMMANDS if name.startswith("s")]
    assert offered("--d") == ["--debug"]


def test_words_of_a_fixed_set_and_flags_are_offered() -> None:
    assert offered("explain", "10.0.0.1", "") == ["TCP", "UDP", "SCTP"]
    assert offered("observe", "--verdict", "ref") == ["refused"]
    assert offered("services", "-o", "") == ["table", "wide", "json", "yaml"]
    assert offered("run", "--fast") == ["--fast-path"]


@pytest.mark.parametrize(
    "typed",
    [("services", ""), ("services", "-n", ""), ("maps", "dump", ""), ("history", "x")],
    ids=" ".join,
)
def test_nothing_is_offered_and_nothing_fails_where_nothing_can_be_read(
    typed: tuple[str, ...], tmp_path: Path
) -> None:
    before, begun = [*typed[:-1], "--pin-root", str(tmp_path / "none")], typed[-1]
    if typed[-2:-1] == ("-n",):
        before = ["services", "--pin-root", str(tmp_path / "none"), "-n"]
    elif typed[0] == "maps":
        before = ["maps", "dump", "--pin-root", str(tmp_path / "none")]
    assert offered(*before, begun) == []


def test_files_are_offered_where_a_file_may_stand() -> None:
    completion = ShellComplete(main, {}, "bpfsvc", "_BPFSVC_COMPLETE")
    for words in (["sysdump", "-o"], ["explain", "--from"], ["doctor", "--from"]):
        types = [item.type for item in completion.get_completions(words, "")]
        assert types[0] == "file", words
    assert "external" in offered("explain", "--from", "ex")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("observe", "--verdict", "=", "ref"), "refused"),
        (("services", "-o", "js"), "json"),
        (("services", "--output", "="), "table wide json yaml"),
    ],
    ids=["a flag with a word", "two words", "nothing yet"],
)
def test_bash_offers_words_after_a_flag_and_an_equals_sign(
    typed: tuple[str, ...], words: str
) -> None:
    """Bash splits at the sign, and puts what is offered after it."""
    assert in_bash(*typed) == words.split()


def test_a_command_that_is_not_there_or_not_installed_fails_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "bench", ("bpfsvc.cli.absent", "Measure."))

    assert offered("bench", "") == [*COMMANDS]
    assert offered("no", "") == [*COMMANDS]


def test_a_user_without_rights_gets_nothing_said_by_the_shells_script(tmp_path: Path) -> None:
    """The file of bash that the package installs; the maps belong to root."""
    secret = tmp_path / "pins"
    secret.mkdir(mode=0o700)

    assert in_bash("services", "--pin-root", str(secret), "def") == []
