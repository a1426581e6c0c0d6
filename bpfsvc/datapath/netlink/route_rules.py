"""Read the rules by which the kernel chooses a routing table (``ip rule``).

The fast path asks for a route by addresses, interface and DSCP, and the answer is used for all
packets between two addresses. So rules that look at anything else are not followed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, ClassVar

from bpfsvc.datapath.netlink.rtnetlink import fibmsg, nlmsg, rtnetlink, rtnl

_OTHERS = {
    "FRA_FWMARK": "fwmark",
    "FRA_IP_PROTO": "ipproto",
    "FRA_SPORT_RANGE": "sport",
    "FRA_DPORT_RANGE": "dport",
    "FRA_TUN_ID": "tun_id",
    "FRA_FLOWLABEL": "flowlabel",
}
"""What a rule may look at and the fast path does not -> its name in ``ip rule``."""

_HEXADECIMAL = ("FRA_FWMARK", "FRA_FLOWLABEL")

_INVERTED = 0x2
"""FIB_RULE_INVERT: the rule is for packets that do not match."""

_FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}


class Rule(nlmsg):  # type: ignore[misc]
    """``struct fib_rule_hdr`` with the attributes that are read here.

    pyroute2's own class knows no flow labels, which came with Linux 6.13. Not a subclass of that
    class: see ``tc._Message``.
    """

    __slots__ = ()
    prefix = "FRA_"
    fields = fibmsg.fields
    port_range = fibmsg.port_range
    nla_map: ClassVar[tuple[tuple[int, str, str], ...]] = (
        (6, "FRA_PRIORITY", "uint32"),
        (10, "FRA_FWMARK", "uint32"),
        (12, "FRA_TUN_ID", "be64"),
        (16, "FRA_FWMASK", "uint32"),
        (22, "FRA_IP_PROTO", "uint8"),
        (23, "FRA_SPORT_RANGE", "port_range"),
        (24, "FRA_DPORT_RANGE", "port_range"),
        (26, "FRA_FLOWLABEL", "be32"),
    )


def unfollowed_rules() -> tuple[str, ...]:
    """Return the rules that packets of the fast path would not follow, one line each."""
    with rtnetlink({rtnl.RTM_NEWRULE: Rule}) as netlink:
        lines: list[str] = []
        for name, family in _FAMILIES.items():
            request = Rule()
            request["family"] = family
            rules = netlink.list(request, rtnl.RTM_GETRULE)
            lines += (f"{name} {text}" for text in unfollowed(rules))
    return tuple(lines)


def unfollowed(rules: list[Any]) -> Iterator[str]:
    """Yield the rules that the fast path does not follow, as ``ip rule`` begins to write them.

    Packets of the fast path have no mark. So "not fwmark" alone, as wg-quick writes it, is
    followed.
    """
    for rule in rules:
        named = {attribute: name for attribute, name in _OTHERS.items() if _asks(rule, attribute)}
        if rule["flags"] & _INVERTED and [*named] == ["FRA_FWMARK"]:
            continue
        if named:
            words = " ".join(
                f"{name} {_shown(rule, attribute)}" for attribute, name in named.items()
            )
            yield f"{rule.get_attr('FRA_PRIORITY') or 0}: {words}"


def _asks(rule: Any, attribute: str) -> bool:
    value = rule.get_attr(attribute)
    if attribute == "FRA_FWMARK":
        return bool(value or rule.get_attr("FRA_FWMASK"))
    return value is not None


def _shown(rule: Any, attribute: str) -> str:
    value = rule.get_attr(attribute)
    return f"{value or 0:#x}" if attribute in _HEXADECIMAL else str(value)
