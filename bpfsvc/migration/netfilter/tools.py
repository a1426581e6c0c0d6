"""The commands that read and change netfilter's tables: iptables, ipset and nft.

iptables exists in two flavours that do not see each other's rules, and kube-proxy may have used
either, or first one and then the other. Each flavour is called by its own name
(``iptables-legacy-save``, ``iptables-nft-save``). Where a distribution has only a plain
``iptables-save``, its version shows the flavour, and the program is used for that flavour alone:
rules must not be removed twice.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.migration.netfilter.iptables import RulesTable, flavour_text, read_tables
from bpfsvc.migration.netfilter.nftables import Listing, read_listing

FlavourName = Literal["legacy", "nft"]
FLAVOURS: tuple[FlavourName, ...] = ("legacy", "nft")
_TOOLS = {4: "iptables", 6: "ip6tables"}
_LEGACY_TABLES = {4: Path("/proc/net/ip_tables_names"), 6: Path("/proc/net/ip6_tables_names")}
_LOCK_SECONDS = 10
_SECONDS = 120
_MOST_LINES = 2
"""Lines of a command's error that are passed on."""


class Flavour(NamedTuple):
    """One flavour of iptables in one family, by the paths of its commands."""

    name: FlavourName
    family: int
    save: str
    restore: str

    def __str__(self) -> str:
        return flavour_text(self.name, self.family)


Saved = dict[Flavour, tuple[RulesTable, ...]]
"""The tables of each flavour."""


class Flavours(NamedTuple):
    """Flavours: the usable ones, and a sentence for each that is not, but may have rules."""

    usable: tuple[Flavour, ...]
    unseen: tuple[str, ...]


def find_flavours(wanted: Sequence[FlavourName] = FLAVOURS) -> Flavours:
    """Return the flavours of this machine, as far as ``wanted``.

    A plain program is run, to learn its flavour, only where one is not there under its own name.
    """
    usable: list[Flavour] = []
    unseen: list[str] = []
    for family, tool in _TOOLS.items():
        for name in wanted:
            programs = _programs(f"{tool}-{name}")
            if not programs and (plain := _programs(tool)) and _flavour_of(plain[0]) == name:
                programs = plain
            if programs:
                usable.append(Flavour(name, family, *programs))
            elif name == "nft" or _legacy_tables(family):
                unseen.append(
                    f"{tool}-{name}-save is not installed:"
                    f" rules of IPv{family} made with {tool}-{name} cannot be seen"
                )
    return Flavours(tuple(usable), tuple(unseen))


def _programs(tool: str) -> tuple[str, str] | None:
    """Return the paths that save and restore, if both are installed."""
    save, restore = shutil.which(f"{tool}-save"), shutil.which(f"{tool}-restore")
    return (save, restore) if save and restore else None


def iptables_save(flavour: Flavour, table: str = "") -> str:
    """Return all tables of a flavour as text, or one of them. This makes no table."""
    if flavour.name == "legacy":
        tables = _legacy_tables(flavour.family)
        if not tables or (table and table not in tables):
            return ""
    return run([flavour.save, *(("-t", table) if table else ())])


def save_tables(
    flavours: Iterable[Flavour], unseen: list[str], tables: Sequence[str] = ("",)
) -> Saved:
    """Return the tables of each flavour; ``tables``: the wanted names, "" for all.

    A flavour that cannot be read is left out, and ``unseen`` gets a sentence.
    """
    saved: Saved = {}
    for flavour in flavours:
        try:
            texts = [iptables_save(flavour, table) for table in tables]
        except KernelError as error:
            unseen.append(error.message)
        else:
            saved[flavour] = tuple(table for text in texts for table in read_tables(text))
    return saved


def iptables_restore(flavour: Flavour, text: str) -> None:
    """Change tables by ``text``, each in one transaction; raise ``KernelError`` if refused."""
    run([flavour.restore, "--noflush", f"--wait={_LOCK_SECONDS}"], text)


def _flavour_of(program: str) -> str:
    """Return the flavour of a plain command. Before 1.8 there was only legacy, not printed."""
    try:
        version = run([program, "--version"])
    except KernelError:
        return ""
    return "nft" if "nf_tables" in version else "legacy"


def _legacy_tables(family: int) -> list[str]:
    """Return the tables of the flavour legacy that this namespace has."""
    try:
        return _LEGACY_TABLES[family].read_text().split()
    except OSError:
        return []


_NFT_FAMILIES = ("ip", "ip6")


def nft_families(table: str) -> tuple[str, ...]:
    """Return the families (``ip``, ``ip6``) that have a table of a name."""
    return families_in(run(["nft", "list", "tables"]), table)


def families_in(listed: str, table: str) -> tuple[str, ...]:
    """Return the families from the output of ``nft list tables``."""
    lines = [line.split() for line in listed.splitlines()]
    return tuple(family for family in _NFT_FAMILIES if ["table", family, table] in lines)


def nft_list(*words: str, terse: bool = False) -> Listing:
    """Return the output of ``nft -j list``; raise ``KernelError``, or :data:`NOT_UNDERSTOOD`.

    ``terse``: without the elements of sets and maps that have a name, which may be many.
    """
    return read_listing(run(["nft", "-j", *["--terse"] * terse, "list", *words]))


def nft_apply(text: str) -> None:
    """Run a script, all of it or nothing; raise ``KernelError`` if refused."""
    run(["nft", "-f", "-"], text)


def run(command: list[str], text: str = "") -> str:
    """Run a command and return its output; raise ``KernelError`` with the lines of its error."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # comments of rules may be in any encoding
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{_name(command)} took more than {_SECONDS} s") from error
    except OSError as error:
        raise KernelError(f"{_name(command)} cannot be run: {error.strerror}") from error
    if done.returncode:
        lines = "; ".join(islice(_error_lines(done.stderr), _MOST_LINES))
        raise KernelError(f"{_name(command)} failed: {lines or f'status {done.returncode}'}")
    return done.stdout


def _name(command: list[str]) -> str:
    return Path(command[0]).name


def _error_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.startswith(("Try `", "#")):
            yield line.strip()
