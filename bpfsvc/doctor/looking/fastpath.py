"""What the fast path would pass by: netfilter's tables, who enforces policies, IPsec."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bpfsvc.datapath.netlink import xfrm
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.datapath.pins import is_bpffs
from bpfsvc.doctor.judging.fastpath import POLICY_PINS
from bpfsvc.doctor.sightings import Chain, Guards
from bpfsvc.errors import KernelError
from bpfsvc.takeover import programs
from bpfsvc.takeover.leftovers import Saved
from bpfsvc.takeover.rules import read_tables

_BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
_WAYS = {
    **dict.fromkeys(("ip", "ip6", "inet"), ("ingress", "prerouting", "forward", "postrouting")),
    "netdev": ("ingress", "egress"),
}
"""Hooks that a forwarded packet passes, by the family of the table."""


def look(network: Network) -> Guards:
    """Look; nothing is changed."""
    saved: Saved = {}
    for flavour in programs.find_flavours().usable:
        with suppress(KernelError):  # what is missing is told of below
            saved[flavour] = read_tables(programs.saved(flavour))
    return see(network, saved)


def see(network: Network, saved: Saved) -> Guards:
    """The same where the tables of iptables, ``saved``, have been read already."""
    flavours = programs.find_flavours()
    unseen = [*flavours.unseen]
    unseen += [f"{each} cannot be read" for each in flavours.usable if each not in saved]
    chains: tuple[Chain, ...] = ()
    nft = shutil.which("nft")
    if nft:
        try:
            chains = tuple(read_chains(programs.run([nft, "-j", "list", "chains"])))
        except KernelError as error:
            unseen.append(error.message)
        except (ValueError, KeyError, AttributeError):
            unseen.append("nft says what cannot be read")
    else:
        unseen.append("nft is not installed: nftables' own tables cannot be seen")
    ipsec = 0
    try:
        ipsec = xfrm.count_policies()
    except OSError as error:
        unseen.append(f"policies of IPsec cannot be counted: {os.strerror(error.errno or 0)}")
    except struct.error:
        unseen.append("policies of IPsec cannot be counted: the answer is too short")
    return Guards(
        devices=frozenset(device.name for device in network.devices),
        tables=tuple((str(flavour), table) for flavour, each in saved.items() for table in each),
        chains=chains,
        pinned=frozenset(_pinned()),
        ipsec=ipsec,
        unseen=tuple(unseen),
    )


def read_chains(listed: str) -> Iterator[Chain]:
    """Read ``nft -j list chains``: those of type ``filter`` that a forwarded packet passes."""
    for each in json.loads(listed)["nftables"]:
        chain = each.get("chain", {})
        ways = _WAYS.get(chain.get("family", ""), ())
        if chain.get("type") == "filter" and chain.get("hook") in ways:
            yield Chain(chain["family"], chain["table"], chain["name"])


def _pinned() -> Iterator[str]:
    if _BPF_FILE_SYSTEM.is_dir() and is_bpffs(_BPF_FILE_SYSTEM):
        yield from (pin for pin in POLICY_PINS if (_BPF_FILE_SYSTEM / pin).exists())
