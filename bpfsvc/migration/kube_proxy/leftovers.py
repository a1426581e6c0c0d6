"""All that kube-proxy left in this network namespace, in the order in which it can be removed.

Rules go before the sets they use, virtual services before the device that has their addresses.
Before anything is removed, conntrack is kept active
(:mod:`bpfsvc.migration.kube_proxy.conntrack_keepalive`). Nothing is ever flushed, and no policy is
changed: a rule that keeps a login alive may be in the same table. The connections that kube-proxy
translated live in conntrack, not in its rules, and continue without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.migration.kube_proxy import commands, conntrack_keepalive, ipvs, names
from bpfsvc.migration.kube_proxy.commands import Flavour, Saved
from bpfsvc.migration.kube_proxy.rules import Removal, read_tables, removal, target_of


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is removed as a whole.

    ``lines``: its content, as its own tool prints it. ``act`` removes it, or raises
    ``KernelError``.
    """

    place: str
    summary: str
    lines: tuple[str, ...]
    act: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.place}: {self.summary}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found.

    * ``saved``: the tables of iptables, kube-proxy's and others'.
    * ``keepalive``: what is added before anything is removed.
    * ``nft_services``: the text of kube-proxy's nftables tables.
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
    """One rule that keeps conntrack active. ``act`` removes it; ``done`` says so afterwards.

    Without ``act`` it is something that could not be checked, and ``done`` says that.
    """

    done: str
    act: Callable[[], None] | None


def find(network: Interfaces) -> Leftovers:
    """Return what is left; nothing is changed. ``network``: the interfaces of this namespace."""
    flavours = commands.find_flavours()
    unseen = list(flavours.unseen)
    saved: Saved = {}
    for flavour in flavours.usable:
        try:
            saved[flavour] = read_tables(commands.iptables_save(flavour))
        except KernelError as error:
            unseen.append(str(error))
    removals = {
        flavour: tuple(filter(None, map(removal, tables))) for flavour, tables in saved.items()
    }
    parts = [part for flavour, each in removals.items() for part in _of_tables(flavour, each)]
    nft = shutil.which("nft")
    texts: dict[str, str] = {}
    if nft:
        try:
            texts = commands.kube_proxy_nft_tables(nft)
        except KernelError as error:
            unseen.append(str(error))
    else:
        unseen.append("nft is not installed: nftables' own tables cannot be seen")
    if nft and texts:
        parts.append(_of_nftables(nft, texts))
    remarks = [*_kept(removals), *_forwarding(saved)]
    parts += _of_ipvs(network, unseen, remarks)
    users = [flavour for flavour, each in removals.items() if conntrack_keepalive.is_needed(each)]
    return Leftovers(
        saved=saved,
        nft_services="\n".join(texts.values()),
        keepalive=_keepalive(users, nft, tuple(texts)) if users or texts else None,
        parts=tuple(parts),
        unseen=tuple(unseen),
        remarks=tuple(remarks),
    )


def _of_tables(flavour: Flavour, removals: Iterable[Removal]) -> Iterator[Leftover]:
    for each in removals:
        yield Leftover(
            f"{flavour}, table {each.table}",
            f"{count_text(len(each.chains), 'chain')} with {count_text(len(each.rules), 'rule')},"
            f" {count_text(len(each.jumps), 'jump')} to them",
            each.lines,
            partial(commands.iptables_restore, flavour, each.text),
        )


def _of_nftables(nft: str, texts: dict[str, str]) -> Leftover:
    return Leftover(
        "nftables",
        " and ".join(f"table {family} {names.NFT_TABLE}" for family in texts),
        tuple(line for text in texts.values() for line in text.splitlines()),
        partial(commands.remove_kube_proxy_nft_tables, nft, tuple(texts)),
    )


def _of_ipvs(network: Interfaces, unseen: list[str], remarks: list[str]) -> Iterator[Leftover]:
    services = ipvs.services(network)
    if services:
        program = shutil.which("ipvsadm")
        if program:
            yield Leftover(
                "ipvs",
                count_text(len(services), "virtual service"),
                tuple(str(each) for each in services),
                partial(ipvs.remove_services, program, services),
            )
        else:
            number = count_text(len(services), "virtual service")
            unseen.append(f"ipvsadm is not installed: {number} cannot be removed")
        live = ipvs.established()
        if live:
            remarks.append(
                f"{count_text(live, 'connection')} through ipvs will end:"
                " ipvs drops the connections of a virtual service that goes"
            )
    device = next((each for each in network.devices if each.name == names.DUMMY_DEVICE), None)
    if device is not None:
        yield Leftover(
            "device",
            f"{device.name} with {count_text(len(device.addresses), 'address', 'addresses')}",
            (f"ip link delete {device.name}",),
            partial(ipvs.remove_device, device.index),
        )
    yield from _of_sets(device is not None, unseen)


def _of_sets(wanted: bool, unseen: list[str]) -> Iterator[Leftover]:
    tool = shutil.which("ipset")
    if not tool:
        if wanted:
            unseen.append("ipset is not installed: sets of ipvs mode cannot be seen")
        return
    try:
        sets = ipvs.sets(tool)
    except KernelError as error:
        unseen.append(str(error))
        return
    if sets:
        yield Leftover(
            "ipset",
            count_text(len(sets), "set"),
            tuple(f"destroy {each}" for each in sets),
            partial(ipvs.remove_sets, tool, sets),
        )


def _keepalive(flavours: list[Flavour], nft: str | None, families: tuple[str, ...]) -> Leftover:
    lines = [f"{flavour}: chain {conntrack_keepalive.CHAIN}" for flavour in flavours]
    lines += [f"nftables: table {family} {conntrack_keepalive.TABLE}" for family in families]

    def add() -> None:
        for flavour in flavours:
            commands.iptables_restore(flavour, conntrack_keepalive.IPTABLES)
        if nft and families:
            commands.nft_apply(nft, conntrack_keepalive.nft_text(families))

    return Leftover(
        "keepalive",
        "conntrack stays active for existing connections",
        tuple(lines),
        add,
    )


def _kept(removals: dict[Flavour, tuple[Removal, ...]]) -> Iterator[str]:
    for flavour, each in removals.items():
        for one in each:
            if one.kept:
                yield (
                    f"{flavour}, table {one.table}: {', '.join(one.kept)} must stay: chains of"
                    " other programs jump there"
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
    """Yield what keeps conntrack active, and sentences about what could not be checked."""
    for flavour in commands.find_flavours().usable:
        try:
            tables = read_tables(commands.iptables_save(flavour))
        except KernelError as error:
            yield Held(f"not checked: {flavour}: {error.message}", None)
            continue
        if any(
            each.name == "nat" and conntrack_keepalive.CHAIN in each.policies for each in tables
        ):
            yield Held(
                f"removed the chain {conntrack_keepalive.CHAIN} from {flavour}",
                partial(commands.iptables_restore, flavour, conntrack_keepalive.IPTABLES_RELEASE),
            )
    nft = shutil.which("nft")
    for family in commands.nft_families(nft, conntrack_keepalive.TABLE) if nft else ():
        yield Held(
            f"removed the table {family} {conntrack_keepalive.TABLE}",
            partial(
                commands.nft_apply, str(nft), f"delete table {family} {conntrack_keepalive.TABLE}\n"
            ),
        )


def release() -> Iterator[str]:
    """Remove what keeps conntrack active; yield a line for each thing done."""
    for each in held():
        if each.act:
            each.act()
        yield each.done


def remove(found: Leftovers) -> Iterator[str]:
    """Remove everything, part by part; yield a line for each, also for one that failed.

    Raises ``BpfsvcError`` at the end if one failed, and at once if conntrack cannot be kept active.
    """
    if found.keepalive:
        found.keepalive.act()
        yield f"done: {found.keepalive}"
    failed = []
    for part in found.parts:
        try:
            part.act()
        except KernelError as error:
            failed.append(part.place)
            yield f"failed: {part}: {error.message}"
        else:
            yield f"done: {part}"
    if failed:
        raise BpfsvcError(
            f"not everything was removed: {', '.join(failed)}",
            "fix the causes printed above, and try again",
        )
