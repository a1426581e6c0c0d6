"""On which addresses of the node NodePorts answer (section 7)."""

from __future__ import annotations

from ipaddress import IPv4Address

from tests.specification.addresses import Address, Network, parse_network
from tests.specification.clients import is_assigned, node_ip, options
from tests.specification.objects import Raw

LO_ADDRESS = IPv4Address("127.0.0.1")
"""The only one of 127/8 that is on an interface; the kernel takes all of them for its own."""


KEYWORDS = {"localhost": ["127.0.0.0/8", "::1/128"], "all": ["0.0.0.0/0", "::/0"]}
"""Section 7: what stands for what; kube-proxy 1.37."""


def networks(case: Raw, family: int) -> list[Network]:
    """Section 7: the list's CIDRs of a family; ``primary`` is the node's IP, unless loopback."""
    setting = case.get("nodeport_addresses") or []
    texts: list[str] = []
    for word in [setting] if isinstance(setting, str) else setting:
        if word == "primary":
            ips = [node_ip(case, version) for version in (4, 6)]
            texts += [f"{ip}/{ip.max_prefixlen}" for ip in ips if not ip.is_loopback]
        else:
            texts += KEYWORDS.get(word, [word])
    parsed = [parse_network(text) for text in texts]
    return [one for one in parsed if one and one.version == family]


def takes_all(case: Raw, family: int) -> bool:
    """Section 7: a family without a CIDR accepts on all its addresses, as does ``/0``."""
    listed = networks(case, family)
    return not listed or any(one.prefixlen == 0 for one in listed)


def takes_loopback(case: Raw) -> bool:
    """Section 7: IPv4 loopback, by the flag and if the list does not exclude it."""
    included = takes_all(case, 4) or any(
        one.network_address.is_loopback or IPv4Address("127.0.0.0") in one
        for one in networks(case, 4)
    )
    return included and options(case).get("localhost_nodeports") is not False


def is_accepted(case: Raw, address: Address) -> bool:
    """Section 7: True if NodePorts answer on the address."""
    if not is_assigned(case, address):
        return False
    if address.is_loopback and address.version == 6:
        names_it = any(str(one) == "::1/128" for one in networks(case, 6))
        return names_it and options(case).get("localhost_nodeports") is not False
    if address.is_loopback:
        if not takes_loopback(case):
            return False
        if not takes_all(case, 4) and address != LO_ADDRESS:
            return False
    return takes_all(case, address.version) or any(
        address in one for one in networks(case, address.version)
    )
