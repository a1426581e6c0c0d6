"""Turn the text of ``iptables-save`` into the text that removes kube-proxy's rules. Pure.

``iptables-restore --noflush`` takes a table's changes as one transaction: all of them happen at
once, or none does. A chain that is declared is emptied, a rule is deleted by repeating it, and an
emptied chain that nothing jumps to can be deleted. What is not named is not touched.

A chain of another program may jump to one of kube-proxy's: the CNI plugin ``portmap`` can be
configured to mark packets for masquerade with KUBE-MARK-MASQ. Such a chain must stay, with all that
it needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.migration.kube_proxy import names

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_TARGET = re.compile(r" (?:-j|-g) (\S+)")


class RuleWords(NamedTuple):
    """The options of a saved rule, each with its first value; ``negated``: those after ``!``."""

    options: dict[str, str]
    negated: frozenset[str]

    def get(self, option: str) -> str:
        """Return the value of an option, "" without it."""
        return self.options.get(option, "")


def words_of(rule: str) -> RuleWords:
    """Return the options of a saved rule; of a repeated one only the first."""
    options: dict[str, str] = {}
    negated: set[str] = set()
    option, is_negated = "", False
    for word in shlex.split(rule):
        if word == "!":
            is_negated = True
        elif word.startswith("-"):
            option = word
            options.setdefault(option, "")
            if is_negated:
                negated.add(option)
            is_negated = False
        elif not options.get(option):
            options[option] = word
    return RuleWords(options, frozenset(negated))


class RulesTable(NamedTuple):
    """A table as saved. ``policies``: chain -> ``ACCEPT``, ``DROP``, or ``-`` for a made chain.

    ``rules`` are lines ``-A CHAIN ...`` in their order.
    """

    name: str
    policies: dict[str, str]
    rules: tuple[str, ...]

    def is_built_in(self, chain: str) -> bool:
        """True if the kernel itself calls a chain."""
        return self.policies.get(chain, "-") != "-"

    def drops(self, chain: str) -> bool:
        """True if what no rule of a chain accepts is dropped."""
        return self.policies.get(chain) == "DROP"


class Removal(NamedTuple):
    """What is removed from one table.

    * ``chains``: those deleted; ``rules``: what they hold, as saved.
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


def read_tables(saved: str) -> tuple[RulesTable, ...]:
    """Return the tables in the output of ``iptables-save``; comments are skipped."""
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
            tables.append(RulesTable(name, policies, tuple(rules)))
            name = ""
    return tuple(tables)


def removal(table: RulesTable) -> Removal | None:
    """Return what to remove from a table; None if nothing of kube-proxy's can be removed."""
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
    """Return the chain of a saved rule."""
    return rule.split(" ", 2)[1]


def target_of(rule: str) -> str:
    """Return the chain or target a saved rule jumps to, or "". A comment may have any words."""
    found = _TARGET.search(_QUOTED.sub('""', rule))
    return found[1] if found else ""


def _kept(table: RulesTable, ours: frozenset[str]) -> frozenset[str]:
    """Return the chains that foreign chains call, and all that these need."""
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
