"""All that kube-proxy left in this network namespace, in the order in which it can go.

Rules go before the sets they name, virtual services before the device that holds their addresses.
Before anything goes, something comes: see :mod:`bpfsvc.takeover.hold`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.errors import BpfsvcError, KernelError
from bpfsvc.takeover import hold, ipvs, names, nftables, programs
from bpfsvc.takeover.programs import Flavour
from bpfsvc.takeover.rules import Removal, Table, read_tables, removal, target_of

Saved = dict[Flavour, tuple[Table, ...]]


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that goes as a whole.

    ``lines``: what is in it, as its own tool writes it. ``act`` raises ``KernelError``.
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
    * ``hold``: what comes first, and takes nothing away.
    * ``nft_services``: the text of kube-proxy's nftables tables.
    * ``unseen``: what could not be looked at, a sentence each.
    * ``remarks``: what to know before it goes.
    """

    saved: Saved
    nft_services: str
    hold: Leftover | None
    parts: tuple[Leftover, ...]
    unseen: tuple[str, ...]
    remarks: tuple[str, ...]


def find(network: Network) -> Leftovers:
    """Look; nothing is changed. ``network``: the interfaces of this network namespace."""
    flavours = programs.find_flavours()
    unseen = list(flavours.unseen)
    saved: Saved = {}
    for flavour in flavours.usable:
        try:
            saved[flavour] = read_tables(programs.saved(flavour))
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
            texts = nftables.find(nft)
        except KernelError as error:
            unseen.append(str(error))
    else:
        unseen.append("nft is not installed: nftables' own tables cannot be seen")
    if nft and texts:
        parts.append(_of_nftables(nft, texts))
    remarks = [*_kept(removals), *_forwarding(saved)]
    parts += _of_ipvs(network, unseen, remarks)
    held = [flavour for flavour, each in removals.items() if hold.is_needed(each)]
    return Leftovers(
        saved=saved,
        nft_services="\n".join(texts.values()),
        hold=_holding(held, nft, tuple(texts)) if held or texts else None,
        parts=tuple(parts),
        unseen=tuple(unseen),
        remarks=tuple(remarks),
    )


def _of_tables(flavour: Flavour, removals: Iterable[Removal]) -> Iterator[Leftover]:
    for each in removals:
        yield Leftover(
            f"{flavour}, table {each.table}",
            f"{_count(each.chains, 'chain')} with {_count(each.rules, 'rule')},"
            f" {_count(each.jumps, 'jump')} to them",
            each.lines,
            partial(programs.restore, flavour, each.text),
        )


def _of_nftables(nft: str, texts: dict[str, str]) -> Leftover:
    return Leftover(
        "nftables",
        " and ".join(f"table {family} {names.NFT_TABLE}" for family in texts),
        tuple(line for text in texts.values() for line in text.splitlines()),
        partial(nftables.remove, nft, tuple(texts)),
    )


def _of_ipvs(network: Network, unseen: list[str], remarks: list[str]) -> Iterator[Leftover]:
    services = ipvs.services(network)
    if services:
        program = shutil.which("ipvsadm")
        if program:
            yield Leftover(
                "ipvs",
                _count(services, "virtual service"),
                tuple(str(each) for each in services),
                partial(ipvs.remove_services, program, services),
            )
        else:
            unseen.append(
                f"ipvsadm is not installed: {_count(services, 'virtual service')} cannot be removed"
            )
        live = ipvs.established()
        if live:
            remarks.append(
                f"{_count(range(live), 'connection')} through ipvs will end:"
                " ipvs drops the connections of a virtual service that goes"
            )
    device = next((each for each in network.devices if each.name == names.DUMMY_DEVICE), None)
    if device is not None:
        yield Leftover(
            "device",
            f"{device.name} with {_count(device.addresses, 'address', 'addresses')}",
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
            _count(sets, "set"),
            tuple(f"destroy {each}" for each in sets),
            partial(ipvs.remove_sets, tool, sets),
        )


def _holding(held: list[Flavour], nft: str | None, families: tuple[str, ...]) -> Leftover:
    lines = [f"{flavour}: chain {hold.CHAIN}" for flavour in held]
    lines += [f"nftables: table {family} {hold.TABLE}" for family in families]

    def put() -> None:
        for flavour in held:
            programs.restore(flavour, hold.IPTABLES)
        if nft and families:
            nftables.apply(nft, hold.nft_text(families))

    return Leftover(
        "before",
        "conntrack is held on, for the connections that go on",
        tuple(lines),
        put,
    )


def _kept(removals: dict[Flavour, tuple[Removal, ...]]) -> Iterator[str]:
    for flavour, each in removals.items():
        for one in each:
            if one.kept:
                yield (
                    f"{flavour}, table {one.table}: {', '.join(one.kept)} must stay, for chains"
                    " that are not kube-proxy's jump there"
                )


def _forwarding(saved: Saved) -> Iterator[str]:
    for flavour, tables in saved.items():
        for table in tables:
            if table.name != "filter" or not table.drops("FORWARD"):
                continue
            if any(target_of(rule) == names.FORWARD for rule in table.rules):
                yield (
                    f"{flavour}: the policy of FORWARD is DROP, and {names.FORWARD} is what accepts"
                    " the traffic of Services: first add a rule that accepts that of pods, if no"
                    " other does"
                )


def _count(things: Iterable[object], one: str, many: str = "") -> str:
    number = len(tuple(things))
    return f"{number} {one if number == 1 else many or one + 's'}"


def release() -> Iterator[str]:
    """Let go of conntrack, if it is held; yield a line for each thing done."""
    for flavour in programs.find_flavours().usable:
        try:
            tables = read_tables(programs.saved(flavour))
        except KernelError as error:
            yield f"not looked at: {flavour}: {error.message}"
            continue
        if any(each.name == "nat" and hold.CHAIN in each.policies for each in tables):
            programs.restore(flavour, hold.IPTABLES_RELEASE)
            yield f"removed the chain {hold.CHAIN} from {flavour}"
    nft = shutil.which("nft")
    for family in nftables.families_of(nft, hold.TABLE) if nft else ():
        nftables.apply(str(nft), f"delete table {family} {hold.TABLE}\n")
        yield f"removed the table {family} {hold.TABLE}"


def remove(found: Leftovers) -> Iterator[str]:
    """Take everything away, part by part; yield a line for each, also for one that would not go.

    Raises ``BpfsvcError`` at the end if there was such a one, and at once if conntrack cannot be
    held on.
    """
    if found.hold:
        found.hold.act()
        yield f"done: {found.hold}"
    failed = []
    for part in found.parts:
        try:
            part.act()
        except KernelError as error:
            failed.append(part.place)
            yield f"not done: {part}: {error.message}"
        else:
            yield f"done: {part}"
    if failed:
        raise BpfsvcError(
            f"not everything went: {', '.join(failed)}", "look at the reasons above, and try again"
        )
