"""All that kube-proxy left in this network namespace, in the order in which it can be removed.

Rules go before the sets they use, virtual servers before the device that has their addresses.
Before anything is removed, conntrack is kept active
(:mod:`bpfsvc.migration.kube_proxy.conntrack_keepalive`). Nothing is ever flushed, and no policy is
changed: a rule that keeps a login alive may be in the same table. The connections that kube-proxy
translated live in conntrack, not in its rules, and continue without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.netlink.details import delete_link
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.migration.kube_proxy import conntrack_keepalive, ipvs, names
from bpfsvc.migration.kube_proxy.conntrack_keepalive import CHAIN, TABLE
from bpfsvc.migration.kube_proxy.removal import Removal, removal
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.iptables import target_of
from bpfsvc.migration.netfilter.tools import Flavour, Saved

_Removals = dict[Flavour, tuple[Removal, ...]]


class Leftover(NamedTuple):
    """One thing that is removed as a whole.

    ``where`` names it; ``lines``: its content, as its own tool prints it. ``act`` removes it, or
    raises ``KernelError``.
    """

    where: str
    summary: str
    lines: tuple[str, ...]
    act: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.where}: {self.summary}"


class Leftovers(NamedTuple):
    """All that kube-proxy left.

    * ``saved``: the tables of iptables, kube-proxy's and others'.
    * ``nft_services``: the text of kube-proxy's nftables tables.
    * ``keepalive``: the rules that are added before anything is removed.
    * ``unseen``: what could not be checked, a sentence each.
    * ``remarks``: what to know before it is removed.
    """

    saved: Saved
    nft_services: str
    keepalive: Leftover | None
    parts: tuple[Leftover, ...]
    unseen: tuple[str, ...]
    remarks: tuple[str, ...]


class Held(NamedTuple):
    """A rule that keeps conntrack active. ``act`` removes it; ``done`` says so afterwards.

    Without ``act``, ``done`` says what could not be checked.
    """

    done: str
    act: Callable[[], object] | None


def find(network: Interfaces) -> Leftovers:
    """Return all that is left; nothing is changed. ``network``: this namespace's interfaces."""
    flavours = tools.find_flavours()
    unseen = list(flavours.unseen)
    saved = tools.save_tables(flavours.usable, unseen)
    removals = {
        flavour: tuple(filter(None, map(removal, tables))) for flavour, tables in saved.items()
    }
    nft_tables = _nft_tables(unseen)
    remarks = [*_kept(removals), *_forwarding(saved)]
    parts = [
        *_of_iptables(removals),
        *_of_nftables(nft_tables),
        *_of_ipvs(network, unseen, remarks),
    ]
    users = [flavour for flavour in saved if conntrack_keepalive.is_needed(removals[flavour])]
    return Leftovers(
        saved=saved,
        nft_services="\n".join(nft_tables.values()),
        keepalive=_keepalive(users, tuple(nft_tables)) if users or nft_tables else None,
        parts=tuple(parts),
        unseen=tuple(unseen),
        remarks=tuple(remarks),
    )


def _nft_tables(unseen: list[str]) -> dict[str, str]:
    """Return family -> text of kube-proxy's table, with numeric values and without counters."""
    if shutil.which("nft") is None:
        unseen.append("nft is not installed: nftables' own tables cannot be seen")
        return {}
    try:
        return {
            family: tools.run(["nft", "-s", "-n", "list", "table", family, names.NFT_TABLE])
            for family in tools.nft_families(names.NFT_TABLE)
        }
    except KernelError as error:
        unseen.append(error.message)
        return {}


def _of_iptables(removals: _Removals) -> Iterator[Leftover]:
    for flavour, of_flavour in removals.items():
        for removed in of_flavour:
            chains, rules = len(removed.chains), len(removed.rules)
            yield Leftover(
                f"{flavour}, table {removed.table}",
                f"{count_text(chains, 'chain')} with {count_text(rules, 'rule')},"
                f" {count_text(len(removed.jumps), 'jump')} to them",
                removed.lines,
                partial(tools.iptables_restore, flavour, removed.text),
            )


def _of_nftables(tables: dict[str, str]) -> Iterator[Leftover]:
    if tables:
        # In one transaction.
        script = "".join(f"delete table {family} {names.NFT_TABLE}\n" for family in tables)
        yield Leftover(
            "nftables",
            " and ".join(f"table {family} {names.NFT_TABLE}" for family in tables),
            tuple(line for text in tables.values() for line in text.splitlines()),
            partial(tools.nft_apply, script),
        )


def _of_ipvs(network: Interfaces, unseen: list[str], remarks: list[str]) -> Iterator[Leftover]:
    servers = ipvs.virtual_servers(network)
    if servers:
        number = count_text(len(servers), "virtual service")
        program = shutil.which("ipvsadm")
        if program:
            lines = tuple(server.deletion for server in servers)
            restore = partial(tools.run, [program, "--restore"], _script(lines))
            yield Leftover("ipvs", number, lines, restore)
        else:
            unseen.append(f"ipvsadm is not installed: {number} cannot be removed")
        live = ipvs.established()
        if live:
            remarks.append(
                f"{count_text(live, 'connection')} through ipvs will end:"
                " ipvs drops the connections of a virtual service that goes"
            )
    device = ipvs.dummy_device(network)
    if device is not None:
        yield Leftover(
            "device",
            f"{device.name} with {count_text(len(device.addresses), 'address', 'addresses')}",
            (f"ip link delete {device.name}",),
            partial(delete_link, device.index),
        )
    yield from _of_sets(device is not None, unseen)


def _of_sets(wanted: bool, unseen: list[str]) -> Iterator[Leftover]:
    """Yield kube-proxy's sets; the kernel refuses while a rule of another program uses one."""
    program = shutil.which("ipset")
    if not program:
        if wanted:
            unseen.append("ipset is not installed: sets of ipvs mode cannot be seen")
        return
    try:
        sets = ipvs.sets(program)
    except KernelError as error:
        unseen.append(error.message)
        return
    if sets:
        lines = tuple(f"destroy {name}" for name in sets)
        restore = partial(tools.run, [program, "restore"], _script(lines))
        yield Leftover("ipset", count_text(len(sets), "set"), lines, restore)


def _script(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _keepalive(flavours: list[Flavour], families: tuple[str, ...]) -> Leftover:
    lines = [f"{flavour}: chain {CHAIN}" for flavour in flavours]
    lines += [f"nftables: table {family} {TABLE}" for family in families]

    def add() -> None:
        for flavour in flavours:
            tools.iptables_restore(flavour, conntrack_keepalive.IPTABLES)
        if families:
            tools.nft_apply(conntrack_keepalive.nft_text(families))

    return Leftover(
        "keepalive", "conntrack stays active for existing connections", tuple(lines), add
    )


def _kept(removals: _Removals) -> Iterator[str]:
    for flavour, of_flavour in removals.items():
        for removed in of_flavour:
            if removed.kept:
                yield (
                    f"{flavour}, table {removed.table}: {', '.join(removed.kept)} must stay: chains"
                    " of other programs jump there"
                )


def _forwarding(saved: Saved) -> Iterator[str]:
    for flavour, tables in saved.items():
        for table in tables:
            if table.name != "filter" or not table.drops("FORWARD"):
                continue
            if any(target_of(rule) == names.FORWARD for rule in table.rules):
                yield (
                    f"{flavour}: the policy of FORWARD is DROP, and {names.FORWARD} accepts the"
                    " traffic of Services: before it is removed, add a rule that accepts the"
                    " traffic of pods, unless there is one"
                )


def held() -> Iterator[Held]:
    """Yield the rules that keep conntrack active, and what could not be checked."""
    for flavour in tools.find_flavours().usable:
        unread: list[str] = []
        tables = tools.save_tables([flavour], unread).get(flavour, ())
        yield from (Held(f"not checked: {flavour}: {text}", None) for text in unread)
        if any(table.name == "nat" and CHAIN in table.policies for table in tables):
            yield Held(
                f"removed the chain {CHAIN} from {flavour}",
                partial(tools.iptables_restore, flavour, conntrack_keepalive.IPTABLES_RELEASE),
            )
    for family in tools.nft_families(TABLE) if shutil.which("nft") else ():
        table = f"table {family} {TABLE}"
        yield Held(f"removed the {table}", partial(tools.nft_apply, f"delete {table}\n"))


def release() -> Iterator[str]:
    """Remove what keeps conntrack active; yield a line for each thing done."""
    for rule in held():
        if rule.act:
            rule.act()
        yield rule.done


def remove(leftovers: Leftovers) -> Iterator[str]:
    """Remove everything, part by part; yield a line for each part, also if it failed.

    Raises ``BpfsvcError`` at the end if a part failed, and at once if conntrack cannot be kept
    active.
    """
    if leftovers.keepalive:
        leftovers.keepalive.act()
        yield f"done: {leftovers.keepalive}"
    failed = []
    for part in leftovers.parts:
        try:
            part.act()
        except KernelError as error:
            failed.append(part.where)
            yield f"failed: {part}: {error.message}"
        else:
            yield f"done: {part}"
    if failed:
        raise BpfsvcError(
            f"not everything was removed: {', '.join(failed)}",
            "fix the causes printed above, and try again",
        )
