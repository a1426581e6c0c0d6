"""Collect rules that name a destination before it is translated, and the frontends of Services.

``bpfsvc run`` collects these as well, when its Services work. kube-proxy's own tables may be large:
of nftables they are not listed, and of iptables only the tables that the rules may be in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator

from bpfsvc.base.address import family as family_of
from bpfsvc.base.address import unpack
from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.maps.pins import NotLoaded, PinRoot
from bpfsvc.datapath.netlink.devices import LOOPBACK, Interfaces
from bpfsvc.doctor import firewall_iptables, firewall_nftables
from bpfsvc.doctor.facts import FirewallFacts
from bpfsvc.doctor.firewall_rules import PacketRule, Place
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.migration.kube_proxy import commands, conntrack_keepalive, names
from bpfsvc.migration.kube_proxy.commands import Saved
from bpfsvc.migration.kube_proxy.rules import read_tables
from bpfsvc.migration.verify.decisions import Decisions
from bpfsvc.migration.verify.maps import read_maps
from bpfsvc.migration.verify.reading import read_rules

_IPTABLES = frozenset({"filter", "mangle", "nat", "raw", "security"})
_READ = ("raw", "mangle", "filter")
_NODEPORT = "nodeport"


def collect_firewall(
    network: Interfaces, root: PinRoot, saved: Saved | None = None
) -> FirewallFacts:
    """Return the facts; ``saved``: the tables of iptables, if they have been read already."""
    unseen: list[str] = []
    tables = saved if saved is not None else _saved(unseen)
    rules = [*_iptables(tables, unseen), *_nftables(unseen)]
    if not rules:
        return FirewallFacts(unseen=tuple(unseen))
    decisions, from_kube_proxy = _decisions(root)
    places = tuple(_places(decisions, network)) if decisions else ()
    return FirewallFacts(tuple(rules), places, from_kube_proxy, tuple(unseen))


# -- rules -----------------------------------------------------------------------------------------


def _saved(unseen: list[str]) -> Saved:
    """Return the tables that the rules may be in; kube-proxy's large ones are in nat."""
    found: Saved = {}
    for flavour in commands.find_flavours().usable:
        try:
            texts = [commands.iptables_save(flavour, table) for table in _READ]
            found[flavour] = tuple(table for text in texts for table in read_tables(text))
        except KernelError as error:
            unseen.append(error.message)
    return found


def _iptables(saved: Saved, unseen: list[str]) -> Iterator[PacketRule]:
    wanted = {name for tables in saved.values() for name in firewall_iptables.set_names(tables)}
    sets = _sets(unseen) if wanted else {}
    unseen += [
        f"the members of the set {name} cannot be read" for name in sorted(wanted - sets.keys())
    ]
    for flavour, tables in saved.items():
        yield from firewall_iptables.read_iptables(str(flavour), flavour.family, tables, sets)


def _sets(unseen: list[str]) -> dict[str, list[str]]:
    """Return all sets of ipset with their members."""
    tool = shutil.which("ipset")
    found: dict[str, list[str]] = {}
    try:
        lines = commands.run([tool, "save"]).splitlines() if tool else ()
    except KernelError as error:
        unseen.append(error.message)
        return found
    for line in lines:
        command, name, *rest = line.split()
        if command == "create":
            found[name] = []
        elif command == "add":
            found[name].append(rest[0])
    return found


def _nftables(unseen: list[str]) -> Iterator[PacketRule]:
    nft = shutil.which("nft")
    if nft is None:
        return  # said already, where kube-proxy's tables are looked for
    try:
        for family, table in _tables(commands.run([nft, "-j", "list", "tables"])):
            listed = commands.run([nft, "-j", "list", "table", family, table])
            text = commands.run([nft, "-a", "list", "table", family, table])
            yield from firewall_nftables.read_nftables(json.loads(listed), text)
    except KernelError as error:
        unseen.append(error.message)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        unseen.append(f"rules of nftables cannot be read: {error!r}")


def _tables(listed: str) -> Iterator[tuple[str, str]]:
    """Yield (family, name) of the tables of other programs; those of iptables are read by it."""
    for each in json.loads(listed)["nftables"]:
        table = each.get("table")
        if table is None or table["name"] in (names.NFT_TABLE, conntrack_keepalive.TABLE):
            continue
        if table["family"] not in ("ip", "ip6") or table["name"] not in _IPTABLES:
            yield table["family"], table["name"]


# -- frontends -------------------------------------------------------------------------------------


def _decisions(root: PinRoot) -> tuple[Decisions | None, bool]:
    """Return what is in bpfsvc's maps, else in kube-proxy's rules, and whether it is the latter."""
    try:
        with open_pinned(root) as pinned:
            return read_maps(PinnedReader(pinned)), False
    except (NotLoaded, BpfsvcError):
        pass
    try:
        return read_rules().decisions(), True
    except BpfsvcError:
        return None, False


def _places(decisions: Decisions, network: Interfaces) -> Iterator[Place]:
    nodeports = decisions.nodeports or frozenset(_addresses(network))
    for frontend, decision in decisions.frontends.items():
        place, protocol = frontend.rsplit("/", 1)
        address, port = _split(place)
        if address.startswith(_NODEPORT):
            is_v6 = address != _NODEPORT
            addresses = tuple(sorted(each for each in nodeports if (":" in each) == is_v6))
        else:
            addresses = (address,)
        backends = {
            _split(each) for client in decision.clients.values() for each in client.backends
        }
        yield Place(decision.service, frontend, addresses, port, protocol, tuple(sorted(backends)))


def _split(place: str) -> tuple[str, int]:
    address, _, port = place.rpartition(":")
    return address.strip("[]"), int(port)


def _addresses(network: Interfaces) -> Iterable[str]:
    return (
        unpack(each.address)
        for device in network.devices
        if device.kind != LOOPBACK
        for each in device.addresses
        if family_of(each.address) in (4, 6)
    )
