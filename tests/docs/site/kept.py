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
    source = kind(main, {}, "bpfsvc", "_BPFSVC_COMPLETE").source()
    for before, after in _CHANGES[shell].items():
        assert source.count(before) == 1, f"click's script for {shell} is another one: {before}"
        source = source.replace(before, after)
    return source


_BASH = {
    "    local response\n": """\
    local response index words=() current=0

    # Bash takes "--flag=word" for three words.
    for index in "${!COMP_WORDS[@]}"; do
        (( index == COMP_CWORD )) && current=${#words[@]}
        if [[ ${COMP_WORDS[index]} != "=" ]]; then
            words+=("${COMP_WORDS[index]}")
        elif (( index == COMP_CWORD )); then
            words+=("")
        fi
    done
""",
    'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD': (
        'COMP_WORDS="${words[*]}" COMP_CWORD=$current'
    ),
}

_ZSH = {
    "    for type key descr in": """\
    # What is offered stands in place of what comes after "--flag=". (-U would drop the flag.)
    local -a accepted=(-U)
    [[ ${words[CURRENT]} == --*=* ]] && compset -P 1 '*=' && accepted=()

    for type key descr in""",
    "compadd -U -V": "compadd $accepted -V",
    """\
    # autoload from fpath, call function directly
    _bpfsvc_completion "$@"
""": """\
    # Autoloaded: this file is the function's body, and would only register at the second call.
    compdef _bpfsvc_completion bpfsvc
    _bpfsvc_completion "$@"
""",
}

_FISH = {
    "    for completion in": """\
    # What is offered stands in place of the whole word, "--flag=" too.
    set -l flag (string match --regex -- '^--[^=]*=' (commandline -t));

    for completion in""",
    'string split ","': 'string split --max 1 ","',
    "echo $metadata[2]": 'echo "$flag$metadata[2]"',
}

_CHANGES = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""What click's scripts lack: words after ``--flag=``; in zsh, the second line of a session;
in fish, descriptions with a comma."""
