"""The files of the checkout that are made of the code: a page, man pages, shell completion."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import get_completion_class

from bpfsvc.cli.main import main
from tests.docs.site import commands
from tests.docs.site.hooks import ROOT

SHARE = ROOT / "bpfsvc" / "share"
"""What the package installs below share/ (setup.cfg)."""

_COMPLETION = {"bash": "bpfsvc", "zsh": "_bpfsvc", "fish": "bpfsvc.fish"}
"""Names of the files, as the shells look for them."""


def files() -> dict[Path, str]:
    """Return the texts of all these files."""
    pages = {SHARE / "man" / name: text for name, text in commands.man_pages().items()}
    return {ROOT / "docs" / "commands.md": commands.page(), **pages, **_completion()}


def _completion() -> dict[Path, str]:
    """Return what makes each shell ask the command itself for what may come next."""
    return {
        SHARE / "completion" / shell / name: _source(shell) for shell, name in _COMPLETION.items()
    }


def _source(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(main, {}, "bpfsvc", "_BPFSVC_COMPLETE").source()
