"""The programs that change netfilter's tables: which there are, and how they are run.

iptables exists in two flavours that do not see each other's rules, and kube-proxy may have used
either, or one after the other. Each is called by its own name (``iptables-legacy-save``,
``iptables-nft-save``). Where a distribution has but a plain ``iptables-save``, that one tells which
flavour it is, and stands for that one alone: rules must not be removed twice.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from bpfsvc.errors import KernelError

FlavourName = Literal["legacy", "nft"]
FLAVOURS: tuple[FlavourName, ...] = ("legacy", "nft")
_TOOLS = {4: "iptables", 6: "ip6tables"}
_LEGACY_TABLES = {4: Path("/proc/net/ip_tables_names"), 6: Path("/proc/net/ip6_tables_names")}
_LOCK_SECONDS = 10
_SECONDS = 120
_MOST_WORDS = 2
"""Lines of a program's complaint that are passed on."""


class Flavour(NamedTuple):
    """One way to the tables of one family, by the paths of its programs."""

    name: FlavourName
    family: int
    save: str
    restore: str

    def __str__(self) -> str:
        return f"iptables ({self.name}), IPv{self.family}"


class Flavours(NamedTuple):
    """Those that can be used, and a sentence for each that cannot but may hold rules."""

    usable: tuple[Flavour, ...]
    unseen: tuple[str, ...]


def find_flavours(
    which: Callable[[str], str | None] = shutil.which,
    flavour_of: Callable[[str], str] | None = None,
    has_legacy_tables: Callable[[int], bool] | None = None,
) -> Flavours:
    """Look for the programs. The arguments stand for this machine in tests."""
    flavour_of = flavour_of or _flavour_of
    has_legacy_tables = has_legacy_tables or _has_legacy_tables
    usable: list[Flavour] = []
    unseen: list[str] = []
    for family, tool in _TOOLS.items():
        plain = which(f"{tool}-save"), which(f"{tool}-restore")
        plain_name = flavour_of(plain[0]) if plain[0] and plain[1] else ""
        for name in FLAVOURS:
            own = which(f"{tool}-{name}-save"), which(f"{tool}-{name}-restore")
            save, restore = own if all(own) else plain if plain_name == name else (None, None)
            if save and restore:
                usable.append(Flavour(name, family, save, restore))
            elif name == "nft" or has_legacy_tables(family):
                unseen.append(
                    f"{tool}-{name}-save is not installed:"
                    f" rules of IPv{family} made with {tool}-{name} cannot be seen"
                )
    return Flavours(tuple(usable), tuple(unseen))


def saved(flavour: Flavour) -> str:
    """Give all tables of a flavour as text. Looking makes no table."""
    return run([flavour.save])


def restore(flavour: Flavour, text: str) -> None:
    """Change tables as ``text`` says, each in one transaction; raise ``KernelError`` if refused."""
    run([flavour.restore, "--noflush", f"--wait={_LOCK_SECONDS}"], text)


def run(command: list[str], text: str = "") -> str:
    """Run a program to its end and give what it printed; ``KernelError`` with its last words."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # of comments, which may be in any code
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{_name(command)} took more than {_SECONDS} s") from error
    except OSError as error:
        raise KernelError(f"{_name(command)} cannot be run: {error.strerror}") from error
    if done.returncode:
        words = "; ".join(islice(_said(done.stderr), _MOST_WORDS)) or f"status {done.returncode}"
        raise KernelError(f"{_name(command)} failed: {words}")
    return done.stdout


def _name(command: list[str]) -> str:
    return Path(command[0]).name


def _said(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.startswith(("Try `", "#")):
            yield line.strip()


def _flavour_of(program: str) -> str:
    """Ask a plain program which flavour it is; before 1.8 there was but one, and it did not say."""
    try:
        words = run([program, "--version"])
    except KernelError:
        return ""
    return "nft" if "nf_tables" in words else "legacy"


def _has_legacy_tables(family: int) -> bool:
    try:
        return bool(_LEGACY_TABLES[family].read_text().strip())
    except OSError:
        return False
