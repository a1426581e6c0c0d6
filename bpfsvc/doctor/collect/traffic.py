"""Collect what happens to the traffic of Services: rules that drop it, failing backends, tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath import conntrack
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.maps.registry import MAPS
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.doctor.check.forward_rules import dropping_in_iptables, dropping_in_nftables
from bpfsvc.doctor.collect.firewall import OTHER_TABLES, read_decisions, served_frontends
from bpfsvc.doctor.facts import DroppingRule, FailingBackends, Fullness, TrafficFacts
from bpfsvc.inspect.reader import PinnedReader, Reader, is_running, open_pinned
from bpfsvc.inspect.recent_failures import REASONS, Carried, CarriedService, ask_failures, carried
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.nftables import NOT_UNDERSTOOD
from bpfsvc.migration.netfilter.tools import Saved


def collect_traffic(network: Interfaces, root: PinRoot, saved: Saved) -> TrafficFacts:
    """Return the facts; ``saved``: the tables of iptables."""
    dropping = (*_iptables(saved), *_nftables())
    decisions, _ = read_decisions(root) if dropping else (None, False)
    frontends = tuple(served_frontends(decisions, network)) if decisions else ()
    known: Carried | None = None
    tables = [*_conntrack()]
    try:
        with open_pinned(root) as pinned:
            reader = PinnedReader(pinned)
            answer = ask_failures(root.path)
            known = carried(reader, answer) if answer else None
            tables += _maps(reader)
    except BpfsvcError:
        pass  # nothing is loaded: another finding says so
    services = known.services if known else ()
    return TrafficFacts(
        dropping,
        frontends,
        tuple(failing for service in services for failing in _failing(service)),
        tuple(
            (service.service, field, count)
            for service in services
            for field, count in service.refused.items()
        ),
        known.seconds if known else 0,
        known is not None,
        root.path.is_dir() and is_running(root),
        tuple(tables),
    )


def _iptables(saved: Saved) -> Iterator[DroppingRule]:
    for flavour, tables in saved.items():
        tool = flavour.restore.rpartition("/")[2].removesuffix("-restore")
        yield from dropping_in_iptables(str(flavour), tool, flavour.family, tables)


def _nftables() -> Iterator[DroppingRule]:
    """Yield the rules of tables that are neither kube-proxy's nor iptables' own."""
    if shutil.which("nft") is None:
        return
    try:
        forwarding = {
            (chain.family, chain.table)
            for chain in tools.nft_list("chains").chains
            if chain.hook == "forward" and (chain.table, chain.name) != ("filter", "FORWARD")
        }
        for family, table in sorted(forwarding):
            if table not in OTHER_TABLES:
                listing = tools.nft_list("table", family, table)
                text = tools.run(["nft", "-a", "list", "table", family, table])
                yield from dropping_in_nftables(listing, text)
    except (KernelError, *NOT_UNDERSTOOD):
        return  # reported already by the check of firewalls, which reads the same tables


def _failing(service: CarriedService) -> Iterator[FailingBackends]:
    for reason in REASONS:
        backends = [backend for backend in service.failing if backend.reason == reason]
        if backends:
            yield FailingBackends(
                service.service,
                tuple(backend.backend for backend in backends),
                service.backends,
                reason,
                sum(backend.failed for backend in backends),
                sum(backend.connections for backend in backends),
            )


def _conntrack() -> Iterator[Fullness]:
    if use := conntrack.use():
        option = "sysctl net.netfilter.nf_conntrack_max"
        yield Fullness("the table of nf_conntrack", use.entries, use.limit, option)


def _maps(reader: Reader) -> Iterator[Fullness]:
    """Yield the maps in which objects and connections need room."""
    for name, info in MAPS.items():
        layout = reader.layout.maps.get(name)
        if layout and info.option and layout.type in ("hash", "lpm_trie"):
            yield Fullness(f"map {name}", reader.count(name), layout.max_entries, info.option)
