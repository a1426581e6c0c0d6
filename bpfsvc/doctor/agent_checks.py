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
from bpfsvc.base.fast_path import ESTABLISHED, FAST, STACK, FastPathLevel, FastPathUse
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.doctor.check.established import established_objections, established_obstacles
from bpfsvc.doctor.check.fast_path import fast_path_objections, fast_path_obstacles
from bpfsvc.doctor.check.others import check_others
from bpfsvc.doctor.collect.fast_path import (
    ForwardingRules,
    fast_path_facts,
    read_each_packet,
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


_OBSTACLES = {FAST: fast_path_obstacles, ESTABLISHED: established_obstacles}
_OBJECTIONS = {FAST: fast_path_objections, ESTABLISHED: established_objections}
"""By level: what forbids it; and, besides, what cannot be checked."""


class FastPathCheck:
    """Looks again and again for the best level of the fast path that this node allows.

    ``pods``: the ranges of the cluster's pods, as far as they are configured. ``levels``: those to
    choose from, the best first; the stack is always allowed. The rules of nftables are kept:
    printing them takes longer than all the rest.
    """

    def __init__(self, pods: Sequence[str], levels: Sequence[FastPathLevel]) -> None:
        self._pods = pods
        self._levels = levels
        self._nft_rules: ForwardingRules | None = None
        self._each_packet: ForwardingRules | None = None

    def look(self, now: FastPathUse, *, rules_changed: bool) -> FastPathUse:
        """Return the best level, and why no better level is allowed.

        ``now``: what the node has. A failed check is no reason to leave this level, because a
        program may not run once; but no other level is begun in doubt. ``rules_changed``: False if
        the rules of nftables are the same as at the last call.
        """
        if rules_changed:
            self._nft_rules = self._each_packet = None
        try:
            return self._best(now.level)
        except (BpfsvcError, OSError) as error:
            return now if now.level != STACK else _unchecked(error)
        except ValueError as error:  # read, but not understood: it will not pass
            return _unchecked(error)

    def _best(self, now: FastPathLevel) -> FastPathUse:
        facts = self._facts()
        better = ""
        for level in self._levels:
            if level == ESTABLISHED:
                facts = self._with_each_packet(facts)
            reasons = _OBSTACLES if level == now else _OBJECTIONS
            reason = next(reasons[level](facts), "")
            if not reason:
                return FastPathUse(level, better)
            better = reason
        return FastPathUse(STACK, better)

    def _facts(self) -> FastPathFacts:
        rules = self._nft_rules or read_nft_rules()
        self._nft_rules = None if rules.unseen else rules
        return fast_path_facts(read_network(), read_legacy_rules(), rules, pods=self._pods)

    def _with_each_packet(self, facts: FastPathFacts) -> FastPathFacts:
        """Add what has to see each packet: only a level that depends on it is worth the reading."""
        rules = self._each_packet or read_each_packet(facts.chains, facts.tables)
        self._each_packet = None if rules.unseen or self._nft_rules is None else rules
        return facts._replace(each_packet=rules.each_packet, unseen=(*facts.unseen, *rules.unseen))


def _unchecked(error: Exception) -> FastPathUse:
    return FastPathUse(STACK, f"netfilter and network policies cannot be checked: {error}")


def lost_firewall_rules(pin_root: Path) -> str:
    """Return a line about rules that no longer see packets to Services, "" without such rules.

    In a process of its own: the code that reads all rules would stay in the agent's memory.
    """
    try:
        return run([sys.executable, "-m", "bpfsvc.doctor.lost_rules", str(pin_root)]).strip()
    except BpfsvcError:
        return ""
