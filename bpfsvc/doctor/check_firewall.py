"""Check whether rules of a firewall no longer see packets to Services. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.texts import count_text, list_text
from bpfsvc.doctor.facts import FirewallFacts
from bpfsvc.doctor.finding import Finding, note, ok, warning
from bpfsvc.doctor.firewall_rules import PacketRule, Place, losing

_SHOWN = 4
_HINT = "write a network policy, or a rule for the endpoints in FORWARD: docs/firewalls.md"


def check_firewall(facts: FirewallFacts) -> Iterator[Finding]:
    """Check the rules: one finding for each table and hook."""
    found = dict(_by_place(facts))
    for where, places in found.items():
        count, first = _rules_of(facts, where, places)
        lost = "will no longer see" if facts.from_kube_proxy else "no longer see"
        yield warning(
            "firewall",
            f"{where}: {count_text(count, 'rule')} {lost} packets to"
            f" {list_text([_text(each) for each in places], _SHOWN)}, because bpfsvc translates"
            f" them before; the first is: {first}",
            _HINT,
        )
    if not found and facts.rules and not facts.places:
        yield note(
            "firewall",
            f"{count_text(len(facts.rules), 'rule')} of {facts.rules[0].where} and others name"
            " destinations before they are translated; no Service is known yet that they concern",
            "run it again when bpfsvc or kube-proxy serves",
        )
    elif not found:
        yield ok("firewall", "no rule that names a destination before its translation is lost")
    for text in facts.unseen:
        yield note("firewall", text)


def firewall_warning(facts: FirewallFacts) -> str:
    """Return one line for a log, or "" if no rule is lost."""
    found = dict(_by_place(facts))
    if not found:
        return ""
    services = list(dict.fromkeys(_text(each) for places in found.values() for each in places))
    return (
        f"rules of {list_text(list(found), 2)} no longer see packets to"
        f" {list_text(services, _SHOWN)}: bpfsvc translates them before"
        " (bpfsvc doctor shows the rules; docs/firewalls.md what to write in their place)"
    )


def _by_place(facts: FirewallFacts) -> Iterator[tuple[str, list[Place]]]:
    grouped: dict[str, list[Place]] = {}
    for where, place in losing(facts.rules, facts.places):
        grouped.setdefault(where, []).append(place)
    yield from grouped.items()


def _rules_of(facts: FirewallFacts, where: str, places: list[Place]) -> tuple[int, str]:
    """Return how many rules of a place are lost, and the first of them."""
    lost: list[PacketRule] = [
        rule
        for rule in facts.rules
        if rule.where == where and any(rule.loses(place) for place in places)
    ]
    return len(lost), lost[0].text


def _text(place: Place) -> str:
    return f"{place.service or 'a Service'} ({place.frontend})"
