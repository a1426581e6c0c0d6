"""Forwarding: sysctls, the interfaces' MTUs and filters, and chains that drop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence

from bpfsvc.address import family as family_of
from bpfsvc.datapath import sysctls
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import LOOPBACK, Device, Network, choose
from bpfsvc.doctor.facts import Forwarding, Interface, Policy
from bpfsvc.errors import KernelError
from bpfsvc.takeover.leftovers import Saved
from bpfsvc.takeover.programs import run

_TUNNELS = frozenset({"vxlan", "geneve", "ipip", "sit", "gre", "gretap", "ip6tnl", "wireguard"})
_PODS = frozenset({"veth", "netkit"})
_FAMILIES = {"ip": 4, "ip6": 6, "inet": 0}


def look(talk: Conversation, network: Network, patterns: Sequence[str], saved: Saved) -> Forwarding:
    """Look; ``saved`` are the tables of iptables."""
    chosen = choose(network.devices, patterns)
    details = read_details(talk)
    return Forwarding(
        interfaces=tuple(
            Interface(
                device.name,
                details[device.index].mtu,
                _rp_filter(device),
                tunnel=device.kind in _TUNNELS,
                pods=device.kind in _PODS
                and device.index not in (network.default_v4, network.default_v6),
            )
            for device in chosen
            if device.index in details
        ),
        families=tuple(sorted(_families(network.devices))),
        forwarded=tuple(family for family in (4, 6) if sysctls.forwards(family)),
        dropping=(*_of_iptables(saved), *_of_nftables()),
    )


def _families(devices: Sequence[Device]) -> set[int]:
    """Give the families of global addresses: IPv6 is on everywhere, and used on few nodes."""
    return {
        family_of(each.address)
        for device in devices
        if device.kind not in (LOOPBACK, "dummy")
        for each in device.addresses
        if not each.scope
    }


def _rp_filter(device: Device) -> int:
    """Give what is in force: the kernel takes the larger of two settings."""
    values = [0]
    for scope in ("all", device.name.replace(".", "/")):
        try:
            values.append(int(sysctls.read(f"net.ipv4.conf.{scope}.rp_filter")))
        except KernelError:
            continue
    return max(values)


def _of_iptables(saved: Saved) -> Iterator[Policy]:
    for flavour, tables in saved.items():
        for table in tables:
            if table.name == "filter" and table.drops("FORWARD"):
                tool = flavour.restore.rpartition("/")[2].removesuffix("-restore")
                yield Policy(f"the policy of FORWARD in {flavour}", flavour.family, tool)


def _of_nftables() -> Iterator[Policy]:
    nft = shutil.which("nft")
    if nft:
        try:
            yield from dropping_chains(run([nft, "-j", "list", "chains"]))
        except KernelError:
            return  # told already: kube-proxy's tables are looked for in the same way


def dropping_chains(listed: str) -> Iterator[Policy]:
    """Read ``nft -j list chains``; the tables of iptables, which it lists too, are left out."""
    for each in json.loads(listed)["nftables"]:
        chain = each.get("chain", {})
        if chain.get("hook") != "forward" or chain.get("policy") != "drop":
            continue
        if chain["family"] in _FAMILIES and (chain["table"], chain["name"]) != (
            "filter",
            "FORWARD",
        ):
            where = f"the policy of chain {chain['family']} {chain['table']} {chain['name']}"
            yield Policy(where, _FAMILIES[chain["family"]])
