"""The checks of ``bpfsvc run`` on its node, at its start and while it runs.

Two programs that both translate Services break connections, so the agent refuses to start beside
another one. The fast path bypasses netfilter, so it is not used on a node where rules or network
policies act on forwarded packets. Rules that match Services before netfilter's DNAT are lost, and
the log says so. Only the facts that these checks need are collected.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.doctor.check.established import established_objections, established_obstacles
from bpfsvc.doctor.check.fast_path import fast_path_objections, fast_path_obstacles
from bpfsvc.doctor.check.others import check_others
from bpfsvc.doctor.collect.fast_path import (
    ForwardingRules,
    fast_path_facts,
    read_legacy_rules,
    read_nft_rules,
)
from bpfsvc.doctor.collect.others import collect_others
from bpfsvc.doctor.facts import FastPathFacts
from bpfsvc.doctor.finding import Level
from bpfsvc.migration.netfilter.tools import run


def refuse_beside_others(pin_root: Path, devices: Sequence[str] = ()) -> None:
    """Raise ``SystemUnfit`` if another implementation of Services is on this node.

    ``devices`` are the patterns of ``--devices``. bpfsvc may start beside kube-proxy.
    """
    others = collect_others(read_network(), PinRoot(pin_root), devices)
    for finding in check_others(others):
        if finding.level is Level.REFUSE:
            raise SystemUnfit(
                finding.text,
                f"{finding.hint} (bpfsvc doctor shows details; --allow-beside starts anyway)",
            )


class FastPathCheck:
    """Looks again and again for what forbids the fast path on this node.

    ``pods``: the ranges of the cluster's pods, as far as they are configured. ``established``: only
    the middle of connections is to be fast. The rules of nftables are kept: printing them takes
    longer than all the rest.
    """

    def __init__(self, pods: Sequence[str] = (), *, established: bool = False) -> None:
        self._pods = pods
        self._established = established
        self._objections = established_objections if established else fast_path_objections
        self._obstacles = established_obstacles if established else fast_path_obstacles
        self._nft_rules: ForwardingRules | None = None

    def objection(self, *, rules_changed: bool) -> str:
        """Return why the fast path must not be used; "" if nothing forbids it.

        ``rules_changed``: False if the rules of nftables are the same as at the last call.
        """
        try:
            return next(self._objections(self._facts(rules_changed)), "")
        except (BpfsvcError, OSError, ValueError) as error:
            return f"netfilter and network policies cannot be checked: {error}"

    def obstacle(self, *, rules_changed: bool) -> str:
        """Return what forbids the fast path; "" also when that cannot be checked now."""
        try:
            return next(self._obstacles(self._facts(rules_changed)), "")
        except (BpfsvcError, OSError):
            return ""
        except ValueError as error:  # read, but not understood: it will not pass
            return f"netfilter's rules cannot be understood: {error}"

    def _facts(self, rules_changed: bool) -> FastPathFacts:
        rules = None if rules_changed else self._nft_rules
        self._nft_rules = None
        if rules is None:
            rules = read_nft_rules(each_packet=self._established)
        if not rules.unseen:
            self._nft_rules = rules
        return fast_path_facts(read_network(), read_legacy_rules(), rules, pods=self._pods)


def lost_firewall_rules(pin_root: Path) -> str:
    """Return a line about rules that no longer see packets to Services, "" without such rules.

    In a process of its own: the code that reads all rules would stay in the agent's memory.
    """
    try:
        return run([sys.executable, "-m", "bpfsvc.doctor.lost_rules", str(pin_root)]).strip()
    except BpfsvcError:
        return ""
