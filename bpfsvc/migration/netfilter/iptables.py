"""The text of ``iptables-save``: its tables, chains, rules, and the words of a rule. Pure.

A rule stays the line that iptables printed: a node may have 100,000, and most of them are only
counted or searched for their target.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(rf" -m comment --comment (?:{_QUOTED.pattern}|\S+)")
_TARGET = re.compile(r" (?:-j|-g) (\S+)")
_STATES = re.compile(r" (! )?--(?:ct)?state ([A-Z,]+)")


class RuleWords(NamedTuple):
    """The options of a rule, each with its first value; ``negated``: the options after ``!``."""

    options: dict[str, str]
    negated: frozenset[str]

    def get(self, option: str) -> str:
        """Return the value of an option, "" without it."""
        return self.options.get(option, "")


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
        """True if packets that no rule of a chain accepts are dropped."""
        return self.policies.get(chain) == "DROP"

    def by_chain(self) -> dict[str, list[str]]:
        """Return the rules of each chain that has rules."""
        rules: dict[str, list[str]] = {}
        for rule in self.rules:
            rules.setdefault(chain_of(rule), []).append(rule)
        return rules


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


def chain_of(rule: str) -> str:
    """Return the chain of a rule."""
    return rule.split(" ", 2)[1]


def target_of(rule: str) -> str:
    """Return the chain or target that a rule jumps to, or "". A comment may have any words."""
    target = _TARGET.search(_QUOTED.sub('""', rule))
    return target[1] if target else ""


def without_comments(rule: str) -> str:
    """Return a rule without its comments, which may have any words."""
    return _COMMENT.sub("", rule)


def states_of(rule: str) -> frozenset[str]:
    """Return the states of conntrack that a rule is for, empty for all; ``!`` before other states.

    ``! --ctstate NEW`` is ``{"!", "NEW"}``.
    """
    states = _STATES.search(_QUOTED.sub('""', rule))
    if not states:
        return frozenset()
    return frozenset(states[2].split(",")) | ({"!"} if states[1] else set())


def words_of(rule: str) -> RuleWords:
    """Return the options of a rule; of a repeated option only the first value."""
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


def reachable(chains: Iterable[str], called: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Yield ``chains`` and all chains that packets reach from there, each once.

    ``called(chain)`` returns the targets of a chain's rules.
    """
    waiting, seen = [*chains], set[str]()
    while waiting:
        chain = waiting.pop(0)
        if chain not in seen:
            seen.add(chain)
            yield chain
            waiting += called(chain)


def flavour_text(name: str, family: int) -> str:
    """Return the name that readers see of a flavour of iptables (``nft``, ``legacy``)."""
    return f"iptables ({name}), IPv{family}"
