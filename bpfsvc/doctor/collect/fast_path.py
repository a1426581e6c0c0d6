"""Collect facts about what the fast path would bypass.

``bpfsvc run`` collects these as well, again and again, so this module has few imports.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain as chained
from typing import NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.netlink import xfrm
from bpfsvc.datapath.netlink.conntrack.flows import tracks
from bpfsvc.datapath.netlink.devices import Interfaces, uplinks
from bpfsvc.datapath.netlink.route_rules import unfollowed_rules
from bpfsvc.doctor.check.each_packet import nft_each_packet
from bpfsvc.doctor.check.fast_path import is_read
from bpfsvc.doctor.collect.others import existing_pins
from bpfsvc.doctor.facts import CNI_MASQUERADE_TABLE, POLICY_PINS, FastPathFacts
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.iptables import RulesTable
from bpfsvc.migration.netfilter.nftables import NOT_UNDERSTOOD, Chain, Listing
from bpfsvc.migration.netfilter.tools import Saved

_HOOKS = {
    **dict.fromkeys(("ip", "ip6", "inet"), ("ingress", "prerouting", "forward", "postrouting")),
    "netdev": ("ingress", "egress"),
    "bridge": ("prerouting", "input", "output", "postrouting"),
}
"""Hooks that the fast path skips, by the family of the table; of bridges, the node's hooks."""


class ForwardingRules(NamedTuple):
    """Rules of netfilter, as :class:`FastPathFacts` has them."""

    tables: tuple[tuple[str, RulesTable], ...] = ()
    chains: tuple[Chain, ...] = ()
    unseen: tuple[str, ...] = ()
    each_packet: tuple[str, ...] = ()


def collect_fast_path(network: Interfaces, saved: Saved | None = None) -> FastPathFacts:
    """Return the facts that decide about the fast path.

    ``saved``: the tables of iptables, if they have been read already.
    """
    rules = read_legacy_rules(saved), read_nft_rules(saved)
    tables = chained.from_iterable(read.tables for read in rules)
    return fast_path_facts(network, *rules, read_each_packet(rules[1].chains, tuple(tables)))


def fast_path_facts(
    network: Interfaces, *rules: ForwardingRules, pods: Sequence[str] = ()
) -> FastPathFacts:
    """Return the facts, with rules that were read. ``pods``: the ranges of the cluster's pods."""
    unseen: list[str] = []
    ipsec = _ipsec_policies(unseen)
    rules_of_routes = _route_rules(unseen)
    return FastPathFacts(
        devices=frozenset(device.name for device in network.devices),
        tables=tuple(chained.from_iterable(read.tables for read in rules)),
        chains=tuple(chained.from_iterable(read.chains for read in rules)),
        pinned=existing_pins(POLICY_PINS),
        ipsec=ipsec,
        unseen=(*chained.from_iterable(read.unseen for read in rules), *unseen),
        each_packet=tuple(chained.from_iterable(read.each_packet for read in rules)),
        tracks=tracks(),
        pods=tuple(pods),
        route_rules=rules_of_routes,
        uplinks=tuple(device.name for device in uplinks(network)),
    )


def read_legacy_rules(saved: Saved | None = None) -> ForwardingRules:
    """Return the rules of iptables-legacy; the kernel announces no change of them."""
    return _iptables_rules("legacy", saved)


def read_nft_rules(saved: Saved | None = None) -> ForwardingRules:
    """Return the chains of nftables, and the rules of iptables on top of it."""
    rules = _iptables_rules("nft", saved)
    unseen = [*rules.unseen]
    chains = _nft_chains(unseen)
    return rules._replace(chains=chains, unseen=tuple(unseen))


def read_each_packet(
    chains: Iterable[Chain], tables: Sequence[tuple[str, RulesTable]]
) -> ForwardingRules:
    """Return which ``chains`` of nftables have to see each packet. Their tables are printed.

    ``tables``: those of iptables, which are read already.
    """
    unseen: list[str] = []
    counting = tuple(_each_packet(chains, tables, unseen))
    return ForwardingRules(unseen=tuple(unseen), each_packet=counting)


def _iptables_rules(name: tools.FlavourName, saved: Saved | None) -> ForwardingRules:
    usable, unseen = tools.find_flavours((name,))
    if saved is None:
        saved = tools.save_tables(usable, [])
    unread = (f"{flavour} cannot be read" for flavour in usable if flavour not in saved)
    tables = ((str(flavour), table) for flavour in usable for table in saved.get(flavour, ()))
    return ForwardingRules(tuple(tables), unseen=(*unseen, *unread))


def _nft_chains(unseen: list[str]) -> tuple[Chain, ...]:
    if not shutil.which("nft"):
        unseen.append("nft is not installed: nftables' own tables cannot be seen")
        return ()
    try:
        return tuple(filtering_chains(tools.nft_list("chains")))
    except KernelError as error:
        unseen.append(error.message)
    except NOT_UNDERSTOOD:
        unseen.append("the output of nft -j list chains cannot be read")
    return ()


def _each_packet(
    chains: Iterable[Chain], read: Sequence[tuple[str, RulesTable]], unseen: list[str]
) -> Iterator[str]:
    """Yield which chains have to see each packet of a connection."""
    tables: dict[tuple[str, str], list[str]] = {}
    for chain in chains:
        if chain.table != CNI_MASQUERADE_TABLE and not is_read(chain, read):
            tables.setdefault((chain.family, chain.table), []).append(chain.name)
    for (family, table), names in tables.items():
        where = f"{family} {table}"
        try:
            listing = tools.nft_list("table", family, table, terse=True)
            if cause := nft_each_packet(listing, names):
                yield f"nftables may have to see each packet in {where} {cause}"
        except KernelError as error:
            unseen.append(error.message)
        except NOT_UNDERSTOOD:
            unseen.append(f"the rules of nftables in {where} cannot be read")


def _ipsec_policies(unseen: list[str]) -> int:
    try:
        return xfrm.count_policies()
    except OSError as error:
        unseen.append(f"IPsec policies cannot be counted: {os.strerror(error.errno or 0)}")
    except struct.error:
        unseen.append("IPsec policies cannot be counted: the kernel's answer is too short")
    return 0


def _route_rules(unseen: list[str]) -> tuple[str, ...]:
    try:
        return unfollowed_rules()
    except KernelError as error:
        unseen.append(f"the rules of routes cannot be read: {error.message}")
        return ()


def filtering_chains(listing: Listing) -> Iterator[Chain]:
    """Yield the chains that filter forwarded packets, and the chains of a CNI's masquerade."""
    for chain in listing.chains:
        kinds = ("filter", "nat") if chain.table == CNI_MASQUERADE_TABLE else ("filter",)
        if chain.kind in kinds and chain.hook in _HOOKS.get(chain.family, ()):
            yield chain
