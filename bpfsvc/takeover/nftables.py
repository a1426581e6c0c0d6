"""kube-proxy's tables in nftables: a table belongs to one owner, and goes as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.takeover import names
from bpfsvc.takeover.programs import run

_FAMILIES = ("ip", "ip6")


def families_of(nft: str, table: str) -> tuple[str, ...]:
    """Give the families (``ip``, ``ip6``) that have a table of a name."""
    return families_in(run([nft, "list", "tables"]), table)


def families_in(listed: str, table: str) -> tuple[str, ...]:
    """Read the answer to ``nft list tables``."""
    lines = [line.split() for line in listed.splitlines()]
    return tuple(family for family in _FAMILIES if ["table", family, table] in lines)


def find(nft: str) -> dict[str, str]:
    """Give family -> text of kube-proxy's table; numbers stay numbers, counters are left out."""
    return {
        family: run([nft, "-s", "-n", "list", "table", family, names.NFT_TABLE])
        for family in families_of(nft, names.NFT_TABLE)
    }


def remove(nft: str, families: Iterable[str]) -> None:
    """Delete the tables of both families in one transaction."""
    apply(nft, "".join(f"delete table {family} {names.NFT_TABLE}\n" for family in families))


def apply(nft: str, text: str) -> None:
    """Do what a script says, all of it or nothing; ``KernelError`` if refused."""
    run([nft, "-f", "-"], text)
