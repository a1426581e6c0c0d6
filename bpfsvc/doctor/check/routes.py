"""Check whether the fast path sends packets the same way as the stack. Pure.

An answer that comes by another uplink than the request left by is left to the stack, for its
reverse path filter. There conntrack finds the answer invalid, as it has not seen the request, so a
rule against invalid packets would drop it. With one uplink there is only one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bpfsvc.base.texts import count_text, list_text
from bpfsvc.doctor.facts import FastPathFacts
from bpfsvc.migration.netfilter.iptables import target_of

INVALID = re.compile(r" --(?:ct)?state INVALID(?: |$)")
"""Part of a rule of iptables for packets that conntrack finds invalid."""

_DROPS = frozenset({"DROP", "REJECT"})
_FOR_THE_NODE = "-A INPUT "


def rule_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield the route rules that packets would not follow."""
    for rule in facts.route_rules:
        yield f"a route rule asks for more than addresses: {rule}"


def route_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield why packets would take other ways than through the stack."""
    yield from rule_obstacles(facts)
    if len(facts.uplinks) > 1:
        yield from _drops_of_answers(facts)


def ipsec_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield that the stack would encrypt packets, and the fast path does not."""
    if facts.ipsec:
        yield (
            f"{count_text(facts.ipsec, 'IPsec policy', 'IPsec policies')} may apply,"
            " and packets would leave unencrypted"
        )


def _drops_of_answers(facts: FastPathFacts) -> Iterator[str]:
    for flavour, table in facts.tables:
        for rule in table.rules:
            if (
                INVALID.search(rule)
                and target_of(rule) in _DROPS
                and not rule.startswith(_FOR_THE_NODE)
            ):
                uplinks = list_text(facts.uplinks, 4)
                yield (
                    f"answers may come by another one of {uplinks} than requests leave by,"
                    f" and a rule in {flavour} drops them: {rule}"
                )
                return
