"""kube-proxy's rules, whichever tool printed them, and what they do to a packet. Pure.

A reader (:mod:`.iptables_rules`, :mod:`.nftables_rules`, :mod:`.ipvs_rules`) turns chains into
:class:`Rule` values. For each frontend and each class of clients the chains are then walked as a
packet walks them. The walk collects all backends that chance or affinity may choose, and whether
the packet is masqueraded.

Packets of a client to itself (hairpin) are left out: both proxies masquerade them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.migration.decisions import Decision, Decisions, Treatment, merged_networks
from bpfsvc.migration.netfilter.iptables import RuleWords
from bpfsvc.services.entries import CLIENTS, Frontend, Place

EVERYONE = frozenset(CLIENTS)


class UnreadableRules(BpfsvcError):
    """A rule of kube-proxy has a part that bpfsvc does not know."""


class IncompleteRules(UnreadableRules):
    """kube-proxy's rules lead to a part that is not there: kube-proxy may be writing it."""

    def __init__(self, part: str) -> None:
        super().__init__(f"kube-proxy's {part} was not found", "run it again")


class Rule(NamedTuple):
    """One rule; all its conditions must hold.

    * ``clients``: the classes it applies to. ``address``: destinations, None for any.
    * ``port``, ``protocol``: the destination's, 0 for any.
    * ``table``: a look-up by frontend, which leads to rules.
    * ``mark``: it marks packets for masquerade. ``affinity``: it holds for clients that come back
      within so many seconds.
    * ``targets``: chains; one of them is called; ``returns``: the next rule follows its end.
    * ``surely``: False if it applies to some packets only (by chance, or by affinity).
    * ``backends``: translates to one of these. ``verdict``: ``drop`` or ``reject``.
    * ``sources``: networks. With a verdict the rule is for clients outside them, else inside.
    """

    clients: frozenset[str] = EVERYONE
    address: frozenset[bytes] | None = None
    port: int = 0
    protocol: int = 0
    table: Mapping[Frontend, tuple[Rule, ...]] | None = None
    mark: bool = False
    affinity: int = 0
    targets: tuple[str, ...] = ()
    returns: bool = True
    surely: bool = True
    backends: tuple[Place, ...] = ()
    verdict: str = ""
    sources: tuple[str, ...] = ()

    def applies(self, client: str, to: Frontend) -> bool:
        """True if all conditions but ``sources`` hold."""
        return (
            client in self.clients
            and (self.address is None or to.address in self.address)
            and self.port in (0, to.port)
            and self.protocol in (0, to.protocol)
        )


def pods_or_others(words: RuleWords) -> frozenset[str]:
    """Return the clients that a rule of iptables applies to, by the detector of local pods."""
    clients = EVERYONE
    for option in ("-s", "-i"):
        if words.get(option):
            clients &= {"node", "other"} if option in words.negated else {"pod"}
    return clients


class RuleSet(NamedTuple):
    """kube-proxy's rules of one family.

    * ``layout``: ``nftables``, or the flavour of iptables. ``family``: 4 or 6.
    * ``firewall``, ``services``, ``filters``: the chains that a packet meets before, at, and after
      its translation.
    * ``names``: the Service of each frontend.
    * ``nodeports``: as in :class:`~bpfsvc.migration.decisions.Decisions`.
    """

    layout: str
    family: int
    chains: Mapping[str, tuple[Rule, ...]]
    firewall: tuple[str, ...]
    services: str
    filters: tuple[str, ...]
    names: Mapping[Frontend, str]
    nodeports: frozenset[bytes] | None = None

    def decisions(self) -> Decisions:
        """Return what happens at each frontend."""
        decisions = {frontend: self._decision(frontend) for frontend in self.names}
        return Decisions(decisions, self.nodeports)

    def _decision(self, to: Frontend) -> Decision:
        walks = {client: self._walk(client, to) for client in CLIENTS}
        return Decision(
            self.names[to],
            {client: walk.treatment() for client, walk in walks.items()},
            max(walk.affinity for walk in walks.values()),
            merged_networks(set().union(*(walk.sources for walk in walks.values()))),
        )

    def _walk(self, client: str, to: Frontend) -> _Walk:
        walk = _Walk(self.chains, client, to)
        for chain in (*self.firewall, self.services):
            walk.through(chain)
        if not walk.backends:
            for chain in self.filters:
                walk.through(chain)
        return walk


class _Walk:
    """The way of all packets of one class of clients to one frontend."""

    def __init__(self, chains: Mapping[str, tuple[Rule, ...]], client: str, to: Frontend) -> None:
        self._chains, self._client, self._to = chains, client, to
        self._masquerade = False
        self._verdict = ""
        self.affinity = 0
        self.backends: set[Place] = set()
        self.sources: set[str] = set()

    def through(self, chain: str) -> bool:
        """Walk through a chain; return True if no packet comes to what follows its call."""
        if chain not in self._chains:
            raise IncompleteRules(f"chain {chain}")
        return self._apply_rules(self._chains[chain])

    def treatment(self) -> Treatment:
        """Return what happens to the packets."""
        if self.backends:
            action = "masquerade" if self._masquerade else "forward"
            return Treatment(action, frozenset(self.backends))
        return Treatment(self._verdict or "pass")

    def _apply_rules(self, rules: Iterable[Rule]) -> bool:
        return any(
            rule.applies(self._client, self._to) and self._apply_rule(rule) for rule in rules
        )

    def _apply_rule(self, rule: Rule) -> bool:
        """Apply a rule that applies; return True if the walk ends with it."""
        self.sources.update(rule.sources)
        if rule.verdict:
            if rule.sources:
                return False  # the client of this walk is inside
            self._verdict = rule.verdict
            return True
        self._masquerade |= rule.mark
        self.affinity = max(self.affinity, rule.affinity)
        self.backends.update(rule.backends)
        ended = bool(rule.backends)
        if rule.table is not None:
            ended |= self._apply_rules(rule.table.get(self._to, ()))
        if rule.targets:
            every = [self.through(target) for target in rule.targets]
            ended |= all(every) or not rule.returns
        # Several rules with sources lead to one chain, and all of them are wanted.
        return ended and rule.surely and not rule.sources
