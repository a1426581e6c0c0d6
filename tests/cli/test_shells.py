"""What zsh and fish make of a line after TAB, by the files that the package installs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

import bpfsvc
from bpfsvc.devtools.lab.patience import stretched

pytestmark = pytest.mark.slow

SHARE = Path(bpfsvc.__file__).parent / "share/completion"
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(SHARE.parents[2]),
    "TERM": "dumb",
}
# TAB shows what the line has become, and empties it.
ZSH = f"""
PS1='ready> '
fpath=({SHARE}/zsh $fpath); autoload -Uz compinit; compinit -u -D
tab() {{ zle expand-or-complete; print -r -- "[line $BUFFER]"; zle kill-buffer }}
zle -N tab; bindkey '^I' tab
"""


@pytest.fixture(scope="module")
def zsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pexpect.spawn[str]]:
    """An interactive zsh that waits for a line."""
    home = tmp_path_factory.mktemp("zsh")
    (home / ".zshrc").write_text(ZSH)
    shell = pexpect.spawn(
        "zsh",
        ["-i"],
        env=ENVIRONMENT | {"ZDOTDIR": str(home)},
        timeout=stretched(10),
        encoding="utf-8",
    )
    shell.expect_exact("ready> ")
    yield shell
    shell.close(force=True)


def after_tab(shell: pexpect.spawn[str], line: str) -> str:
    """Return what becomes of a line in zsh."""
    shell.send(f"{line}\t")
    shell.expect_exact("[line ")
    shell.expect_exact("]")
    return str(shell.before)


def offered_by_fish(line: str, home: Path) -> list[str]:
    """Return what fish offers for the last word of a line, without descriptions."""
    script = f"source {SHARE}/fish/bpfsvc.fish; complete --do-complete '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "--command", script],
        env=ENVIRONMENT | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(30),
    )
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


LINES = {
    "bpfsvc histo": "bpfsvc history",
    "bpfsvc observe --verdict ref": "bpfsvc observe --verdict refused",
    "bpfsvc observe --verdict=ref": "bpfsvc observe --verdict=refused",
    "bpfsvc run --fast-p": "bpfsvc run --fast-path",
    "bpfsvc explain 10.0.0.1 SC": "bpfsvc explain 10.0.0.1 SCTP",
}


@pytest.mark.parametrize("line", LINES)
def test_zsh_completes_a_line(zsh: pexpect.spawn[str], line: str) -> None:
    assert after_tab(zsh, line).rstrip() == LINES[line]


def test_zsh_leaves_a_line_that_leads_nowhere(zsh: pexpect.spawn[str]) -> None:
    assert after_tab(zsh, "bpfsvc nothing") == "bpfsvc nothing"


@pytest.mark.parametrize("line", LINES)
def test_fish_offers_the_word_that_completes_a_line(line: str, tmp_path: Path) -> None:
    assert offered_by_fish(line, tmp_path) == [LINES[line].split()[-1]]


def test_fish_offers_nothing_for_a_line_that_leads_nowhere(tmp_path: Path) -> None:
    assert offered_by_fish("bpfsvc nothing", tmp_path) == []
