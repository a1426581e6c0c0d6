"""From the text of ``iptables-save`` to the text that removes kube-proxy's part of a table. Pure.

``iptables-restore --noflush`` takes a table's changes as one transaction: all of them happen at
once, or none does. A chain that is declared is emptied, a rule is deleted by repeating it, and an
emptied chain that nothing jumps to can be deleted. What is not named is not touched.

A chain of somebody else may jump to one of kube-proxy's: the CNI plugin ``portmap`` can be told to
mark with KUBE-MARK-MASQ what is to be masqueraded. Such a chain must stay, with all that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bpfsvc.takeover import names

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_TARGET = re.compile(r" (?:-j|-g) (\S+)")


@dataclass(frozen=True, slots=True)
class Table:
    """A table as saved. ``policies``: chain -> ``ACCEPT``, ``DROP``, or ``-`` for a made chain.

    ``rules`` are lines ``-A CHAIN ...`` in their order.
    """

    name: str
    policies: dict[str, str]
    rules: tuple[str, ...]

    def is_built_in(self, chain: str) -> bool:
        """Whether the kernel itself calls a chain."""
        return self.policies.get(chain, "-") != "-"

    def drops(self, chain: str) -> bool:
        """Whether what passes a chain to its end is dropped."""
        return self.policies.get(chain) == "DROP"


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes from one table.

    * ``chains``: those deleted; ``rules``: what they hold, as saved.
    * ``jumps``: the rules of built-in chains that call them, as saved.
    * ``kept``: chains of kube-proxy that stay because a chain of somebody else needs them.
    """

    table: str
    chains: tuple[str, ...]
    rules: tuple[str, ...]
    jumps: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Give all that goes, as ``iptables-save`` writes it."""
        return (*(f":{chain}" for chain in self.chains), *self.rules, *self.jumps)

    @property
    def text(self) -> str:
        """Give the input of ``iptables-restore --noflush``."""
        return "\n".join(
            (
                f"*{self.table}",
                *(f":{chain} - [0:0]" for chain in self.chains),
                *(f"-D{jump.removeprefix('-A')}" for jump in self.jumps),
                *(f"-X {chain}" for chain in self.chains),
                "COMMIT\n",
            )
        )


def read_tables(saved: str) -> tuple[Table, ...]:
    """Read what ``iptables-save`` printed; comments and what is no table are passed over."""
    tables = []
    name = ""
    policies: dict[str, str] = {}
    rules: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            name, policies, rules = line[1:].strip(), {}, []
        elif line.startswith(":"):
            chain, policy, *_ = line[1:].split()
            policies[chain] = policy
        elif line.startswith("-A "):
            rules.append(line)
        elif line == "COMMIT" and name:
            tables.append(Table(name, policies, tuple(rules)))
            name = ""
    return tuple(tables)


def removal(table: Table) -> Removal | None:
    """Give what is to go from a table; None if nothing in it is kube-proxy's to lose."""
    ours = [chain for chain in table.policies if names.is_chain(chain)]
    if not ours:
        return None
    kept = _kept(table, frozenset(ours))
    gone = [chain for chain in ours if chain not in kept]
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


def chain_of(rule: str) -> str:
    """Give the chain a saved rule stands in."""
    return rule.split(" ", 2)[1]


def target_of(rule: str) -> str:
    """Give where a saved rule jumps or goes to, or "". A comment may hold any words."""
    found = _TARGET.search(_QUOTED.sub('""', rule))
    return found[1] if found else ""


def _kept(table: Table, ours: frozenset[str]) -> frozenset[str]:
    """Give the chains that foreign chains call, and all that these need."""
    calls: dict[str, set[str]] = {}
    wanted: list[str] = []
    for rule in table.rules:
        target = target_of(rule)
        if target not in ours:
            continue
        chain = chain_of(rule)
        if chain in ours:
            calls.setdefault(chain, set()).add(target)
        elif not table.is_built_in(chain):
            wanted.append(target)
    return frozenset(_closure(wanted, calls, ours))


def _closure(
    wanted: Iterable[str], calls: dict[str, set[str]], ours: frozenset[str]
) -> Iterator[str]:
    waiting, seen = list(wanted), set()
    while waiting:
        chain = waiting.pop()
        if chain in seen or chain not in ours:
            continue
        seen.add(chain)
        yield chain
        waiting += calls.get(chain, ())
        if chain == names.MARK_MASQUERADE:
            waiting.append(names.MASQUERADE)
