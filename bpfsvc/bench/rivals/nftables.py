"""kube-proxy's nftables layout, as commands for nft.

A first packet costs two look-ups, in the map of addresses and in that of NodePorts, whatever the
number of Services; there is a chain for every Service, in which one rule chooses an endpoint and
translates to it. (Before 1.36 there was a chain for every endpoint too.) A change rewrites the
chains of the Service alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bpfsvc.bench.rivals.balanced import (
    MASQUERADE_MARK,
    Balanced,
    Site,
    Step,
    digest,
    text,
)

PORTION = 1000
"""Services in one transaction. (kube-proxy writes all in one: of 10,000 in half as long again.)"""

_HASH = 8  # letters of a hash in a chain's name

_ADDRESS_PORT = "type ipv4_addr . inet_proto . inet_service : verdict"
_PORT = "type inet_proto . inet_service : verdict"
_SETS = (
    "set {} cluster-ips { type ipv4_addr ; }",
    "set {} hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; }",
    "set {} nodeport-ips { type ipv4_addr ; }",
    f"map {{}} firewall-ips {{ {_ADDRESS_PORT} ; }}",
    f"map {{}} no-endpoint-services {{ {_ADDRESS_PORT} ; }}",
    f"map {{}} no-endpoint-nodeports {{ {_PORT} ; }}",
    f"map {{}} service-ips {{ {_ADDRESS_PORT} ; }}",
    f"map {{}} service-nodeports {{ {_PORT} ; }}",
)

_BASES = {
    "filter-prerouting-pre-dnat": "type filter hook prerouting priority -110",
    "filter-output-pre-dnat": "type filter hook output priority -110",
    "filter-input": "type filter hook input priority 0",
    "filter-forward": "type filter hook forward priority 0",
    "filter-output": "type filter hook output priority 0",
    "nat-prerouting": "type nat hook prerouting priority -100",
    "nat-output": "type nat hook output priority -100",
    "nat-postrouting": "type nat hook postrouting priority 100",
}
"""The chains where packets come in, and where on their way that is."""

_WHERE = "meta l4proto . th dport"
_MARK = f"mark set mark or {MASQUERADE_MARK}"
_MARKED = f"mark and {MASQUERADE_MARK} != 0 mark set mark xor {MASQUERADE_MARK}"
_RULES = (
    "filter-prerouting-pre-dnat ct state new jump firewall-check",
    "filter-output-pre-dnat ct state new jump firewall-check",
    "filter-input ct state new jump nodeport-endpoints-check",
    "filter-input ct state new jump service-endpoints-check",
    "filter-forward ct state new jump service-endpoints-check",
    "filter-forward ct state new jump cluster-ips-check",
    "filter-output ct state new jump service-endpoints-check",
    "filter-output ct state new jump cluster-ips-check",
    "nat-prerouting jump services",
    "nat-output jump services",
    "nat-postrouting jump masquerading",
    f"firewall-check ip daddr . {_WHERE} vmap @firewall-ips",
    f"service-endpoints-check ip daddr . {_WHERE} vmap @no-endpoint-services",
    f"nodeport-endpoints-check ip daddr @nodeport-ips {_WHERE} vmap @no-endpoint-nodeports",
    "cluster-ips-check ip daddr @cluster-ips reject",
    "cluster-ips-check ip daddr {{ {services} }} drop",
    f"services ip daddr @cluster-ips ip saddr != {{pods}} {_MARK}",
    f"services ip daddr . {_WHERE} vmap @service-ips",
    f"services ip daddr @nodeport-ips {_WHERE} vmap @service-nodeports",
    f"masquerading {_MARKED} masquerade fully-random",
    f"masquerading ct status dnat ip saddr . ip daddr . {_WHERE} @hairpin-connections "
    "masquerade fully-random",
)
_TABLE = "ip kube-proxy"
_SYNC = ("nft", "-f", "-")


def first(services: Sequence[Balanced], site: Site) -> list[Step]:
    """Give the transactions that write everything, where nothing is yet."""
    lines = [f"add table {_TABLE}"]
    lines += (f"add {each.replace('{}', _TABLE, 1)}" for each in _SETS)
    lines += (f"add chain {_TABLE} {name} {{ {base} ; }}" for name, base in _BASES.items())
    named = dict.fromkeys(rule.split()[0] for rule in _RULES)
    lines += (f"add chain {_TABLE} {name}" for name in named if name not in _BASES)
    places = {"pods": site.pods, "services": site.services}
    lines += (f"add rule {_TABLE} {rule.format_map(places)}" for rule in _RULES)
    lines.append(f"add element {_TABLE} nodeport-ips {{ {site.address} }}")
    steps = []
    for start in range(0, len(services), PORTION):
        for service in services[start : start + PORTION]:
            lines += _chains(service)
            lines += _elements(service)
            lines += _hairpins(service, site)
        steps.append(Step(_SYNC, text(lines)))
        lines = []
    return steps


def change(after: Balanced, site: Site) -> list[Step]:
    """Give the transaction that spreads a Service over its endpoints of now."""
    # Entries of endpoints that are gone stay: another Service may have the same.
    return [Step(_SYNC, text((*_hairpins(after, site), *_chains(after))))]


def service_chain(service: Balanced, kind: str = "service") -> str:
    """Name the chain that spreads, or (``external``) the one for traffic from outside."""
    name = _name(service)
    return f"{kind}-{digest(name, _HASH)}-{name}"


def _name(service: Balanced) -> str:
    name, _, port = service.name.partition(":")
    return f"{name}/{service.protocol}/{port}"


def _chains(service: Balanced) -> Iterator[str]:
    """Yield the commands for a Service's own chains, be they there already or not."""
    spread, endpoints = service_chain(service), service.endpoints
    yield from _emptied(spread)
    choices = " , ".join(f"{at} : {to.address} . {to.port}" for at, to in enumerate(endpoints))
    yield (
        f"add rule {_TABLE} {spread} meta l4proto {service.protocol} dnat ip addr . port to "
        f"numgen random mod {len(endpoints)} map {{ {choices} }}"
    )
    if service.node_port:
        outside = service_chain(service, "external")
        yield from _emptied(outside)
        yield f"add rule {_TABLE} {outside} {_MARK}"
        yield f"add rule {_TABLE} {outside} goto {spread}"


def _hairpins(service: Balanced, site: Site) -> Iterator[str]:
    """Yield an entry for each endpoint that may be its own client on this node."""
    for each in service.endpoints:
        if site.holds(each):
            yield (
                f"add element {_TABLE} hairpin-connections {{ {each.address} . {each.address} . "
                f"{service.protocol} . {each.port} }}"
            )


def _emptied(chain: str) -> tuple[str, str]:
    return f"add chain {_TABLE} {chain}", f"flush chain {_TABLE} {chain}"


def _elements(service: Balanced) -> Iterator[str]:
    yield f"add element {_TABLE} cluster-ips {{ {service.address} }}"
    yield (
        f"add element {_TABLE} service-ips {{ {service.address} . {service.protocol} . "
        f"{service.port} : goto {service_chain(service)} }}"
    )
    if service.node_port:
        yield (
            f"add element {_TABLE} service-nodeports {{ {service.protocol} . {service.node_port} "
            f": goto {service_chain(service, 'external')} }}"
        )
