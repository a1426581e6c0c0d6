"""Check whether rules of a firewall no longer see packets to Services. Pure.

With kube-proxy a packet to a Service keeps its destination until netfilter's DNAT (nat PREROUTING,
priority -100), so a firewall may match NodePorts and addresses of load balancers before that.
bpfsvc translates at tc ingress, which the kernel runs before every hook of netfilter, also before
netdev ingress (net/core/dev.c, __netif_receive_skb_core): such a rule sees the endpoint instead.
Then conntrack takes the endpoint for the original destination, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.base.texts import count_text, list_text
from bpfsvc.doctor.facts import FirewallFacts, PacketRule, ServedFrontend
from bpfsvc.doctor.finding import Finding, note, ok, warning
from bpfsvc.services.entries import Frontend, frontend_text

_SHOWN = 4
_HINT = "write a network policy, or a rule for the endpoints in FORWARD: docs/firewalls.md"


def check_firewall(facts: FirewallFacts) -> Iterator[Finding]:
    """Check the rules: one finding for each table and hook."""
    lost = _lost(facts)
    for where, frontends in lost.items():
        rules = [
            rule for rule in facts.rules if rule.where == where and any(map(rule.loses, frontends))
        ]
        texts = [_text(served) for served in frontends]
        see = "will no longer see" if facts.from_kube_proxy else "no longer see"
        yield warning(
            "firewall",
            f"{where}: {count_text(len(rules), 'rule')} {see} packets to"
            f" {list_text(texts, _SHOWN)}, because bpfsvc translates"
            f" them before; the first is: {rules[0].text}",
            _HINT,
        )
    if not lost and facts.rules and not facts.frontends:
        yield note(
            "firewall",
            f"{count_text(len(facts.rules), 'rule')} of {facts.rules[0].where} and others name"
            " destinations before they are translated; no Service is known yet that they concern",
            "run it again when bpfsvc or kube-proxy serves",
        )
    elif not lost:
        yield ok("firewall", "no rule that names a destination before its translation is lost")
    for text in facts.unseen:
        yield note("firewall", text)


def firewall_warning(facts: FirewallFacts) -> str:
    """Return one line for a log, or "" if no rule is lost."""
    lost = _lost(facts)
    if not lost:
        return ""
    names = dict.fromkeys(_text(served) for frontends in lost.values() for served in frontends)
    return (
        f"rules of {list_text(list(lost), 2)} no longer see packets to"
        f" {list_text(list(names), _SHOWN)}: bpfsvc translates them before"
        " (bpfsvc doctor shows the rules; docs/firewalls.md what to write in their place)"
    )


def _lost(facts: FirewallFacts) -> dict[str, list[ServedFrontend]]:
    """Return for each table and hook the frontends that rules there no longer apply to."""
    by_port: dict[int, list[ServedFrontend]] = {}
    for served in facts.frontends:
        by_port.setdefault(served.frontend.port, []).append(served)
    lost: dict[str, dict[Frontend, ServedFrontend]] = {}
    for rule in facts.rules:
        known = lost.setdefault(rule.where, {})
        for served in _candidates(rule, facts.frontends, by_port):
            if served.frontend not in known and rule.loses(served):
                known[served.frontend] = served
    return {where: list(frontends.values()) for where, frontends in lost.items() if frontends}


def _candidates(
    rule: PacketRule, every: Iterable[ServedFrontend], by_port: dict[int, list[ServedFrontend]]
) -> Iterable[ServedFrontend]:
    """Return the frontends that a rule may apply to, by its ports if it names some."""
    for match in rule.matches:
        if match.ports is not None and not match.negated:
            return [
                served
                for port, of_port in by_port.items()
                if any(first <= port <= last for first, last in match.ports)
                for served in of_port
            ]
    return every


def _text(served: ServedFrontend) -> str:
    return f"{served.service or 'a Service'} ({frontend_text(served.frontend)})"
