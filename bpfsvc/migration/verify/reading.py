"""Read kube-proxy's rules from this node, in whichever of its modes it wrote them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError, KernelError, UsageError
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.migration.decisions import Decision, Decisions
from bpfsvc.migration.kube_proxy import ipvs, names
from bpfsvc.migration.kube_proxy.running import find_kube_proxy
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.tools import Saved
from bpfsvc.migration.verify.iptables_rules import read_iptables
from bpfsvc.migration.verify.ipvs_rules import LAYOUT, is_of_ipvs, read_ipvs
from bpfsvc.migration.verify.nftables_rules import read_nftables
from bpfsvc.migration.verify.rules import RuleSet
from bpfsvc.services.entries import Frontend

NFTABLES = "nftables"
LAYOUTS = (NFTABLES, *(f"iptables-{name}" for name in tools.FLAVOURS), LAYOUT)
"""The values of ``--rules``."""

_FAMILIES = {"ip": 4, "ip6": 6}


class Rules(NamedTuple):
    """kube-proxy's rules. ``layout``: one of :data:`LAYOUTS`. ``unseen``: what cannot be read."""

    layout: str
    families: tuple[RuleSet, ...]
    unseen: tuple[str, ...]

    def decisions(self) -> Decisions:
        """Return what happens at each frontend of all families."""
        frontends: dict[Frontend, Decision] = {}
        nodeports: set[bytes] | None = None
        for decisions in (rules.decisions() for rules in self.families):
            frontends |= decisions.frontends
            if decisions.nodeports is not None:
                nodeports = (nodeports or set()) | decisions.nodeports
        return Decisions(frontends, None if nodeports is None else frozenset(nodeports))


def read_rules(wanted: str = "") -> Rules:
    """Return the rules of kube-proxy; ``wanted``: one of :data:`LAYOUTS`, "" for any.

    Raises ``BpfsvcError`` if there are none, and ``UsageError`` if there are several kinds.
    """
    unseen: list[str] = []
    by_layout: dict[str, list[RuleSet]] = {}
    saved = tools.save_tables(tools.find_flavours().usable, unseen)
    for rules in (*_nftables(unseen), *_iptables(saved), *_ipvs(saved, unseen)):
        if wanted in ("", rules.layout):
            by_layout.setdefault(rules.layout, []).append(rules)
    if not by_layout:
        raise BpfsvcError(
            f"kube-proxy has no {wanted or 'iptables, nftables or ipvs'} rules on this node"
            + "".join(f"; {text}" for text in unseen),
            "compare while kube-proxy runs here, or while its rules are still there",
        )
    layout = _choose(by_layout)
    return Rules(layout, tuple(by_layout[layout]), tuple(unseen))


def _choose(by_layout: dict[str, list[RuleSet]]) -> str:
    """Return the layout that kube-proxy uses now; rules of another mode may be left."""
    if len(by_layout) > 1:
        mode = find_kube_proxy(agent_runs=True).mode
        used = [layout for layout in by_layout if mode and layout.startswith(mode)]
        if len(used) != 1:
            raise UsageError(
                f"kube-proxy's rules are here more than once: {', '.join(by_layout)}",
                f"say which to compare: --rules {next(iter(by_layout))}",
            )
        return used[0]
    return next(iter(by_layout))


def _nftables(unseen: list[str]) -> Iterator[RuleSet]:
    if shutil.which("nft") is None:
        unseen.append("nft is not installed")
        return
    try:
        families = tools.nft_families(names.NFT_TABLE)
    except KernelError as error:
        unseen.append(error.message)
        return
    for family in families:
        listing = tools.nft_list("table", family, names.NFT_TABLE)
        if rules := read_nftables(listing, _FAMILIES[family]):
            yield rules


def _iptables(saved: Saved) -> Iterator[RuleSet]:
    for flavour, tables in saved.items():
        if rules := read_iptables(f"iptables-{flavour.name}", flavour.family, tables):
            yield rules


def _ipvs(saved: Saved, unseen: list[str]) -> Iterator[RuleSet]:
    """Yield the rules of ipvs mode, if kube-proxy's device is here."""
    network = read_network()
    if ipvs.dummy_device(network) is None:
        return
    ipvsadm, ipset = shutil.which("ipvsadm"), shutil.which("ipset")
    if not (ipvsadm and ipset):
        unseen.append("ipvsadm and ipset are not both installed: ipvs cannot be compared")
        return
    try:
        servers, sets = tools.run([ipvsadm, "-Sn"]), tools.run([ipset, "save"])
    except KernelError as error:
        unseen.append(error.message)
        return
    nat = {
        flavour.family: table
        for flavour, tables in saved.items()
        for table in tables
        if table.name == "nat" and is_of_ipvs(table)
    }
    for family in _FAMILIES.values():
        addresses = ipvs.dummy_addresses(network)
        if rules := read_ipvs(family, servers, sets, nat.get(family), addresses):
            yield rules
