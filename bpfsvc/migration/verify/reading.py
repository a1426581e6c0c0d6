"""Read kube-proxy's rules from this node, in whichever of its modes it wrote them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.base.address import unpack
from bpfsvc.base.errors import BpfsvcError, KernelError, UsageError
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.migration.kube_proxy import commands, names
from bpfsvc.migration.kube_proxy.rules import RulesTable, read_tables
from bpfsvc.migration.kube_proxy.running import find_kube_proxy
from bpfsvc.migration.verify.decisions import Decisions
from bpfsvc.migration.verify.iptables_rules import read_iptables
from bpfsvc.migration.verify.ipvs_rules import LAYOUT, is_of_ipvs, read_ipvs
from bpfsvc.migration.verify.nftables_rules import read_nftables
from bpfsvc.migration.verify.rules import RuleSet

NFTABLES = "nftables"
LAYOUTS = (NFTABLES, *(f"iptables-{name}" for name in commands.FLAVOURS), LAYOUT)
"""What ``--rules`` takes."""

_FAMILIES = {"ip": 4, "ip6": 6}


_Saved = tuple[commands.Flavour, tuple[RulesTable, ...]]
"""The tables of a flavour of iptables."""


class Rules(NamedTuple):
    """kube-proxy's rules. ``layout``: one of :data:`LAYOUTS`. ``unseen``: what cannot be read."""

    layout: str
    families: tuple[RuleSet, ...]
    unseen: tuple[str, ...]

    def decisions(self) -> Decisions:
        """Return what happens at each frontend of all families."""
        found = [each.decisions() for each in self.families]
        known = [each.nodeports for each in found if each.nodeports is not None]
        return Decisions(
            {frontend: one for each in found for frontend, one in each.frontends.items()},
            frozenset().union(*known) if known else None,
        )


def read_rules(wanted: str = "") -> Rules:
    """Return the rules of kube-proxy; ``wanted``: one of :data:`LAYOUTS`, "" for what is there.

    Raises ``BpfsvcError`` if there are none, and ``UsageError`` if there are several kinds.
    """
    unseen: list[str] = []
    found: dict[str, list[RuleSet]] = {}
    tables = tuple(_saved(unseen))
    for each in (*_nftables(unseen), *_iptables(tables), *_ipvs(tables, unseen)):
        if wanted in ("", each.layout):
            found.setdefault(each.layout, []).append(each)
    if not found:
        raise BpfsvcError(
            f"kube-proxy has no {wanted or 'iptables, nftables or ipvs'} rules on this node"
            + "".join(f"; {text}" for text in unseen),
            "compare while kube-proxy runs here, or while its rules are still there",
        )
    return Rules(layout := _choose(found), tuple(found[layout]), tuple(unseen))


def _choose(found: dict[str, list[RuleSet]]) -> str:
    """Return the layout that kube-proxy uses now; what it wrote in another mode may be left."""
    if len(found) > 1:
        mode = find_kube_proxy(agent_runs=True).mode
        used = [layout for layout in found if mode and layout.startswith(mode)]
        if len(used) != 1:
            raise UsageError(
                f"kube-proxy's rules are here more than once: {', '.join(found)}",
                f"say which to compare: --rules {next(iter(found))}",
            )
        return used[0]
    return next(iter(found))


def _nftables(unseen: list[str]) -> Iterator[RuleSet]:
    nft = shutil.which("nft")
    if nft is None:
        unseen.append("nft is not installed")
        return
    try:
        families = commands.nft_families(nft, names.NFT_TABLE)
    except KernelError as error:
        unseen.append(error.message)
        return
    for family in families:
        listed = commands.run([nft, "-j", "list", "table", family, names.NFT_TABLE])
        rules = read_nftables(json.loads(listed), _FAMILIES[family])
        if rules is not None:
            yield rules


def _saved(unseen: list[str]) -> Iterator[_Saved]:
    for flavour in commands.find_flavours().usable:
        try:
            yield flavour, tuple(read_tables(commands.iptables_save(flavour)))
        except KernelError as error:
            unseen.append(error.message)


def _iptables(saved: Iterable[_Saved]) -> Iterator[RuleSet]:
    for flavour, tables in saved:
        rules = read_iptables(f"iptables-{flavour.name}", flavour.family, tables)
        if rules is not None:
            yield rules


def _ipvs(saved: Iterable[_Saved], unseen: list[str]) -> Iterator[RuleSet]:
    """Yield those of ipvs mode; its addresses are on a device of kube-proxy's."""
    device = [each for each in read_network().devices if each.name == names.DUMMY_DEVICE]
    if not device:
        return
    servers, sets = shutil.which("ipvsadm"), shutil.which("ipset")
    if not (servers and sets):
        unseen.append("ipvsadm and ipset are not both installed: ipvs cannot be compared")
        return
    try:
        texts = commands.run([servers, "-Sn"]), commands.run([sets, "save"])
    except KernelError as error:
        unseen.append(error.message)
        return
    held = {unpack(one.address) for one in device[0].addresses}
    nat = {
        flavour.family: table
        for flavour, tables in saved
        for table in tables
        if table.name == "nat" and is_of_ipvs(table)
    }
    for family in _FAMILIES.values():
        rules = read_ipvs(family, *texts, nat.get(family), held)
        if rules is not None:
            yield rules
