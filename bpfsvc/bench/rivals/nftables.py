"""kube-proxy's nftables layout, as commands for nft.

A first packet costs two look-ups, in the map of addresses and in that of NodePorts, whatever the
number of Services; there is a chain for every Service and every endpoint. A change rewrites the
chains of the Service alone. Chains that nothing leads to any more go with a later transaction, as
kube-proxy leaves them for a second: older kernels refuse to delete them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from bpfsvc.bench.rivals.balanced import (
    MASQUERADE_MARK,
    Backend,
    Balanced,
    Site,
    Step,
    digest,
    text,
)

PORTION = 1000
"""Services in one transaction: what fits is written at once."""

_HASH = 8  # letters of a hash in a chain's name

_ADDRESS_PORT = "type ipv4_addr . inet_proto . inet_service : verdict"
_PORT = "type inet_proto . inet_service : verdict"
_SETS = (
    "set {} cluster-ips { type ipv4_addr ; }",
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
    f"services ip daddr . {_WHERE} vmap @service-ips",
    f"services ip daddr @nodeport-ips {_WHERE} vmap @service-nodeports",
    f"mark-for-masquerade mark set mark or {MASQUERADE_MARK}",
    f"masquerading mark and {MASQUERADE_MARK} == 0 return",
    f"masquerading mark set mark xor {MASQUERADE_MARK}",
    "masquerading masquerade fully-random",
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
    lines += (f"add rule {_TABLE} {rule}" for rule in _RULES)
    lines.append(f"add element {_TABLE} nodeport-ips {{ {site.address} }}")
    steps = []
    for start in range(0, len(services), PORTION):
        for service in services[start : start + PORTION]:
            lines += _chains(service, site)
            lines += _elements(service)
        steps.append(Step(_SYNC, text(lines)))
        lines = []
    return steps


def change(after: Balanced, stale: Collection[tuple[Balanced, Backend]], site: Site) -> list[Step]:
    """Give the transaction that spreads a Service over its endpoints of now.

    ``stale`` are endpoints that nothing leads to since an earlier change.
    """
    lines = list(_chains(after, site))
    for service, backend in stale:
        chain = endpoint_chain(service, backend)
        lines += (f"flush chain {_TABLE} {chain}", f"delete chain {_TABLE} {chain}")
    return [Step(_SYNC, text(lines))]


def service_chain(service: Balanced, kind: str = "service") -> str:
    """Name the chain that spreads, or (``external``) the one for traffic from outside."""
    name = _name(service)
    return f"{kind}-{digest(name, _HASH)}-{name}"


def endpoint_chain(service: Balanced, backend: Backend) -> str:
    """Name the chain that translates to an endpoint."""
    name = f"{_name(service)}__{backend.address}/{backend.port}"
    return f"endpoint-{digest(name, _HASH)}-{name}"


def _name(service: Balanced) -> str:
    name, _, port = service.name.partition(":")
    return f"{name}/{service.protocol}/{port}"


def _chains(service: Balanced, site: Site) -> Iterator[str]:
    """Yield the commands for a Service's own chains, be they there already or not."""
    spread, endpoints = service_chain(service), service.endpoints
    chains = {each: endpoint_chain(service, each) for each in endpoints}
    for backend, chain in chains.items():
        yield from _emptied(chain)
        if site.holds(backend):
            yield f"add rule {_TABLE} {chain} ip saddr {backend.address} jump mark-for-masquerade"
        yield f"add rule {_TABLE} {chain} meta l4proto {service.protocol} dnat to {backend}"
    yield from _emptied(spread)
    yield (
        f"add rule {_TABLE} {spread} ip daddr {service.address} ip saddr != {site.pods} "
        "jump mark-for-masquerade"
    )
    choices = ", ".join(f"{at} : goto {chain}" for at, chain in enumerate(chains.values()))
    yield (f"add rule {_TABLE} {spread} numgen random mod {len(endpoints)} vmap {{ {choices} }}")
    if service.node_port:
        outside = service_chain(service, "external")
        yield from _emptied(outside)
        yield f"add rule {_TABLE} {outside} jump mark-for-masquerade"
        yield f"add rule {_TABLE} {outside} goto {spread}"


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
