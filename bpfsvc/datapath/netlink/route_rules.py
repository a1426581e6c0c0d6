"""Read the rules by which the kernel chooses a routing table (``ip rule``).

The fast path asks for a route by addresses, interface and traffic class, and the answer is used for
all packets between two addresses. So rules that look at anything else are not followed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from bpfsvc.datapath.netlink.rtnetlink import fibmsg, rtnetlink, rtnl

_OTHERS = {
    "FRA_FWMARK": "fwmark",
    "FRA_IP_PROTO": "ipproto",
    "FRA_SPORT_RANGE": "sport",
    "FRA_DPORT_RANGE": "dport",
    "FRA_TUN_ID": "tun_id",
}
"""What a rule may look at and the fast path does not -> its name in ``ip rule``."""

_INVERTED = 0x2
"""FIB_RULE_INVERT: the rule is for packets that do not match."""

_FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}


def unfollowed_rules() -> tuple[str, ...]:
    """Return the rules that packets of the fast path would not follow, one line each."""
    with rtnetlink() as netlink:
        found: list[str] = []
        for name, family in _FAMILIES.items():
            request = fibmsg()
            request["family"] = family
            rules = netlink.list(request, rtnl.RTM_GETRULE)
            found += (f"{name} {text}" for text in unfollowed(rules))
    return tuple(found)


def unfollowed(rules: list[Any]) -> Iterator[str]:
    """Yield those of the kernel's messages, as ``ip rule`` begins to write them.

    The rest has no mark. So "not fwmark" alone, which wg-quick writes, is followed.
    """
    for rule in rules:
        named = {attribute: name for attribute, name in _OTHERS.items() if _asks(rule, attribute)}
        if rule["flags"] & _INVERTED and [*named] == ["FRA_FWMARK"]:
            continue
        if named:
            words = " ".join(f"{name} {_shown(rule, each)}" for each, name in named.items())
            yield f"{rule.get_attr('FRA_PRIORITY') or 0}: {words}"


def _asks(rule: Any, attribute: str) -> bool:
    value = rule.get_attr(attribute)
    if attribute == "FRA_FWMARK":
        return bool(value or rule.get_attr("FRA_FWMASK"))
    return value is not None


def _shown(rule: Any, attribute: str) -> str:
    value = rule.get_attr(attribute)
    return f"{value or 0:#x}" if attribute == "FRA_FWMARK" else str(value)
