"""Collect rules that name a destination before it is translated, and the frontends of Services.

``bpfsvc run`` collects these as well, when its Services work. kube-proxy's own tables may be large:
of nftables they are not listed, and of iptables only the tables that the rules may be in.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from bpfsvc.base.address import family as family_of
from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.devices import LOOPBACK, Interfaces
from bpfsvc.doctor.check.early_rules import read_iptables, read_nftables, set_names
from bpfsvc.doctor.facts import FirewallFacts, PacketRule, ServedFrontend
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.migration.decisions import ANY_NODE_ADDRESS, Decisions
from bpfsvc.migration.kube_proxy import conntrack_keepalive, names
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.ipvs import read_sets
from bpfsvc.migration.netfilter.nftables import NOT_UNDERSTOOD
from bpfsvc.migration.netfilter.tools import Saved
from bpfsvc.migration.verify.maps import read_maps
from bpfsvc.migration.verify.reading import read_rules

_IPTABLES = frozenset({"filter", "mangle", "nat", "raw", "security"})
OTHER_TABLES = frozenset({names.NFT_TABLE, conntrack_keepalive.TABLE})
"""Tables of nftables that are kube-proxy's, or bpfsvc's own."""
_READ = ("raw", "mangle", "filter")
"""The tables that the rules may be in; kube-proxy's large chains are in nat."""


def collect_firewall(
    network: Interfaces, root: PinRoot, saved: Saved | None = None
) -> FirewallFacts:
    """Return the facts; ``saved``: the tables of iptables, if they have been read already."""
    unseen: list[str] = []
    if saved is None:
        saved = tools.save_tables(tools.find_flavours().usable, unseen, _READ)
    rules = (*_iptables(saved, unseen), *_nftables(unseen))
    if not rules:
        return FirewallFacts(unseen=tuple(unseen))
    decisions, from_kube_proxy = read_decisions(root)
    frontends = tuple(served_frontends(decisions, network)) if decisions else ()
    return FirewallFacts(rules, frontends, from_kube_proxy, tuple(unseen))


def _iptables(saved: Saved, unseen: list[str]) -> Iterator[PacketRule]:
    wanted = {name for tables in saved.values() for name in set_names(tables)}
    sets: dict[str, list[str]] = {}
    ipset = shutil.which("ipset")
    try:
        sets = read_sets(tools.run([ipset, "save"])) if wanted and ipset else {}
    except KernelError as error:
        unseen.append(error.message)
    unseen += [
        f"the members of the set {name} cannot be read" for name in sorted(wanted - sets.keys())
    ]
    for flavour, tables in saved.items():
        yield from read_iptables(str(flavour), flavour.family, tables, sets)


def _nftables(unseen: list[str]) -> Iterator[PacketRule]:
    """Yield the rules of other programs' tables; iptables reads its own."""
    if shutil.which("nft") is None:
        return  # said already, where kube-proxy's tables are looked for
    try:
        for family, table in tools.nft_list("tables").tables:
            is_iptables = family in ("ip", "ip6") and table in _IPTABLES
            if table not in OTHER_TABLES and not is_iptables:
                listing = tools.nft_list("table", family, table)
                text = tools.run(["nft", "-a", "list", "table", family, table])
                yield from read_nftables(listing, text)
    except KernelError as error:
        unseen.append(error.message)
    except NOT_UNDERSTOOD as error:
        unseen.append(f"rules of nftables cannot be read: {error!r}")


def read_decisions(root: PinRoot) -> tuple[Decisions | None, bool]:
    """Return bpfsvc's decisions, else kube-proxy's, and whether they are kube-proxy's."""
    try:
        with open_pinned(root) as pinned:
            return read_maps(PinnedReader(pinned)), False
    except BpfsvcError:
        pass
    try:
        return read_rules().decisions(), True
    except BpfsvcError:
        return None, False


def served_frontends(decisions: Decisions, network: Interfaces) -> Iterator[ServedFrontend]:
    """Yield the frontends of decisions, NodePorts by the node's own addresses."""
    nodeports = decisions.nodeports or {
        held.address
        for device in network.devices
        if device.kind != LOOPBACK
        for held in device.addresses
    }
    of_node = {
        wildcard: tuple(sorted(address for address in nodeports if family_of(address) == family))
        for family, wildcard in ANY_NODE_ADDRESS.items()
    }
    for frontend, decision in decisions.frontends.items():
        addresses = of_node.get(frontend.address, (frontend.address,))
        backends = frozenset[tuple[bytes, int]]().union(
            *(treatment.backends for treatment in decision.clients.values())
        )
        yield ServedFrontend(decision.service, frontend, addresses, tuple(sorted(backends)))
