"""Collect facts about other programs: for Services, and in the way of the fast path.

``bpfsvc run`` collects these as well, at its start, so this module has few imports.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network
from itertools import chain as chained
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import loaded
from bpfsvc.datapath.attach import tcx, xdp
from bpfsvc.datapath.kernel_names import kernel_names
from bpfsvc.datapath.maps.pins import PinRoot, is_bpffs
from bpfsvc.datapath.netlink import tc, xfrm
from bpfsvc.datapath.netlink.conntrack.flows import tracks
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Device, Interfaces, devices_to_attach, uplinks
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.datapath.netlink.route_rules import unfollowed_rules
from bpfsvc.doctor.check.established import nft_each_packet
from bpfsvc.doctor.check.fast_path import is_read
from bpfsvc.doctor.facts import (
    ANTREA_SERVICES,
    CILIUM_PINS,
    CNI_MASQUERADE_TABLE,
    POLICY_PINS,
    FastPathFacts,
    ForeignProgram,
    OthersFacts,
)
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.iptables import RulesTable
from bpfsvc.migration.netfilter.nftables import NOT_UNDERSTOOD, Chain, Listing
from bpfsvc.migration.netfilter.tools import Saved

_ROUTES = Path("/proc/net/route")
_BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
_OUR_MAPS = tuple(map(kernel_names, ("connections", "new_connections", "backend_counters")))
"""The names of each of three maps that only bpfsvc's programs use together."""

_HOOKS = {
    **dict.fromkeys(("ip", "ip6", "inet"), ("ingress", "prerouting", "forward", "postrouting")),
    "netdev": ("ingress", "egress"),
    "bridge": ("prerouting", "input", "output", "postrouting"),
}
"""Hooks that the fast path skips, by the family of the table; of bridges, the node's hooks."""

# -- other implementations of Services -------------------------------------------------------------


def collect_others(network: Interfaces, root: PinRoot, patterns: Sequence[str]) -> OthersFacts:
    """Return the signs of others; ``patterns`` choose the interfaces as ``--devices`` does."""
    names = frozenset(device.name for device in network.devices)
    loaded_programs, loaded_maps = loaded.program_names(), loaded.map_names()
    visible = loaded_programs is not None and loaded_maps is not None
    return OthersFacts(
        devices=names,
        attached=tuple(foreign_programs(root, devices_to_attach(network.devices, patterns))),
        loaded=(loaded_programs or frozenset()) | (loaded_maps or frozenset()) if visible else None,
        pinned=_existing(CILIUM_PINS),
        gateway=gateway_of(_ROUTES.read_text(), ANTREA_SERVICES),
    )


def foreign_programs(root: PinRoot, devices: Sequence[Device]) -> Iterator[ForeignProgram]:
    """Yield the programs on ``devices`` that do not belong to the agent at ``root``."""
    details, own = read_details(), xdp.attached(root)
    for device in devices:
        for program in details[device.index].xdp if device.index in details else ():
            if program != own.get(device.index):
                yield ForeignProgram(device.name, "xdp", "xdp", loaded.program_name(program))
        for hook in Hook:
            with suppress(DeviceGone):
                yield from _at_hook(root, device, hook)


def _at_hook(root: PinRoot, device: Device, hook: Hook) -> Iterator[ForeignProgram]:
    own = tcx.program_id(root, device.index, hook)
    for program in tcx.programs(device.index, hook):
        if program != own:
            yield ForeignProgram(
                device.name,
                str(hook),
                "tcx",
                loaded.program_name(program),
                bpfsvc=is_bpfsvc(loaded.maps_of(program)),
            )
    for item in tc.attached(device.index, hook):
        # A filter of bpfsvc is replaced at the start, whichever agent left it.
        if not item.chain and not item.ours:
            name, kind, priority = item.name, item.kind, item.priority
            yield ForeignProgram(device.name, str(hook), "clsact", name, kind, priority)


def is_bpfsvc(maps: frozenset[str]) -> bool:
    """True if a program that uses ``maps`` is one of bpfsvc, of whichever build."""
    return all(maps & names for names in _OUR_MAPS)


def gateway_of(routes: str, address: str) -> str:
    """Return the interface of the route to one address in ``/proc/net/route``, or ""."""
    wanted = f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"
    rows = (line.split() for line in routes.splitlines()[1:])
    return next((row[0] for row in rows if row[1] == wanted), "")


# -- what the fast path would bypass ---------------------------------------------------------------


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
    rules = read_legacy_rules(saved), read_nft_rules(saved, each_packet=True)
    return fast_path_facts(network, *rules)


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
        pinned=_existing(POLICY_PINS),
        ipsec=ipsec,
        unseen=(*chained.from_iterable(read.unseen for read in rules), *unseen),
        each_packet=tuple(chained.from_iterable(read.each_packet for read in rules)),
        tracks=tracks(),
        pods=tuple(map(ip_network, pods)),
        route_rules=rules_of_routes,
        uplinks=tuple(device.name for device in uplinks(network)),
    )


def read_legacy_rules(saved: Saved | None = None) -> ForwardingRules:
    """Return the rules of iptables-legacy; the kernel announces no change of them."""
    return _iptables_rules("legacy", saved)


def read_nft_rules(saved: Saved | None = None, *, each_packet: bool) -> ForwardingRules:
    """Return the rules of nftables, and of iptables on top of it.

    ``each_packet``: find rules that have to see each packet, too. All tables are printed for that.
    """
    rules = _iptables_rules("nft", saved)
    unseen = [*rules.unseen]
    chains = _nft_chains(unseen)
    counting = tuple(_each_packet(chains, rules.tables, unseen)) if each_packet else ()
    return rules._replace(chains=chains, unseen=tuple(unseen), each_packet=counting)


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
            if name := nft_each_packet(tools.nft_list("table", family, table), names):
                yield f"nftables has to see each packet in {where} {name}"
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


def _existing(pins: Iterable[str]) -> frozenset[str]:
    """Return the ``pins`` that exist below the bpf file system."""
    if not _BPF_FILE_SYSTEM.is_dir() or not is_bpffs(_BPF_FILE_SYSTEM):
        return frozenset()
    return frozenset(pin for pin in pins if (_BPF_FILE_SYSTEM / pin).exists())
