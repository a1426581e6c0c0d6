"""On which addresses of the node NodePorts answer (section 7)."""

from __future__ import annotations

from ipaddress import IPv4Address

from tests.specification.addresses import Address, Network, parse_network
from tests.specification.clients import is_assigned, node_ip, options
from tests.specification.objects import Raw

LO_ADDRESS = IPv4Address("127.0.0.1")
"""The only one of 127/8 that is on an interface; the kernel takes all of them for its own."""


def networks(case: Raw, family: int) -> list[Network]:
    """Section 7: the list's CIDRs of a family; ``primary`` is the node's IP, unless loopback."""
    setting = case.get("nodeport_addresses") or []
    if setting in ("primary", ["primary"]):
        texts = [
            f"{node_ip(case, each)}/{32 if each == 4 else 128}"
            for each in (4, 6)
            if not node_ip(case, each).is_loopback
        ]
    else:
        texts = [setting] if isinstance(setting, str) else setting
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
    if address.is_loopback:
        if address.version == 6 or not takes_loopback(case):
            return False
        if not takes_all(case, 4) and address != LO_ADDRESS:
            return False
    return takes_all(case, address.version) or any(
        address in one for one in networks(case, address.version)
    )
