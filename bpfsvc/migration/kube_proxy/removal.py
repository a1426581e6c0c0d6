"""Turn the tables of iptables into the text that removes kube-proxy's rules. Pure.

``iptables-restore --noflush`` takes a table's changes as one transaction: all of them happen at
once, or none does. A chain that is declared is emptied, a rule is deleted by repeating it, and an
emptied chain that nothing jumps to can be deleted. What is not named is not touched.

A chain of another program may jump to a chain of kube-proxy: the CNI plugin ``portmap`` can be
configured to mark packets for masquerade with KUBE-MARK-MASQ. The called chain must stay, with all
that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, chain_of, reachable, target_of


class Removal(NamedTuple):
    """The chains and rules that are removed from one table.

    * ``chains``: the deleted chains; ``rules``: their rules, as saved.
    * ``jumps``: the rules of built-in chains that call them, as saved.
    * ``kept``: chains of kube-proxy that stay because a chain of another program needs them.
    """

    table: str
    chains: tuple[str, ...]
    rules: tuple[str, ...]
    jumps: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return all that is removed, as ``iptables-save`` writes it."""
        return (*(f":{chain}" for chain in self.chains), *self.rules, *self.jumps)

    @property
    def text(self) -> str:
        """Return the input of ``iptables-restore --noflush``."""
        return "\n".join(
            (
                f"*{self.table}",
                *(f":{chain} - [0:0]" for chain in self.chains),
                *(f"-D{jump.removeprefix('-A')}" for jump in self.jumps),
                *(f"-X {chain}" for chain in self.chains),
                "COMMIT\n",
            )
        )


def removal(table: RulesTable) -> Removal | None:
    """Return the removal from a table; None if nothing of kube-proxy's can be removed."""
    kube_proxys = [chain for chain in table.policies if names.is_chain(chain)]
    if not kube_proxys:
        return None
    kept = _kept(table, frozenset(kube_proxys))
    gone = [chain for chain in kube_proxys if chain not in kept]
    jumps, rules = [], []
    for rule in table.rules:
        chain, target = chain_of(rule), target_of(rule)
        if names.is_chain(chain):
            if chain not in kept:
                rules.append(rule)
        elif table.is_built_in(chain) and names.is_chain(target):
            needed = target in kept and target == names.MASQUERADE
            if not needed:
                jumps.append(rule)
    if not gone and not jumps:
        return None
    return Removal(table.name, tuple(gone), tuple(rules), tuple(jumps), tuple(sorted(kept)))


def _kept(table: RulesTable, kube_proxys: frozenset[str]) -> frozenset[str]:
    """Return the chains of kube-proxy that other programs' chains call, and all that these need."""
    calls: dict[str, set[str]] = {names.MARK_MASQUERADE: {names.MASQUERADE} & kube_proxys}
    wanted: list[str] = []
    for rule in table.rules:
        chain, target = chain_of(rule), target_of(rule)
        if target not in kube_proxys:
            continue
        if chain in kube_proxys:
            calls.setdefault(chain, set()).add(target)
        elif not table.is_built_in(chain):
            wanted.append(target)

    def called(chain: str) -> Iterable[str]:
        return calls.get(chain, ())

    return frozenset(reachable(wanted, called))
