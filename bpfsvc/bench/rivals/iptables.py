"""kube-proxy's iptables layout, as text for iptables-restore.

A first packet walks ``KUBE-SERVICES``, one rule for each frontend, until its rule comes: the cost
that grows with the cluster. (kube-proxy goes through a hash map, so its order is any; here it is
the order given.) A change rewrites these rules all the same, and the chains of what changed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bpfsvc.bench.rivals import counters
from bpfsvc.bench.rivals.balanced import (
    MASQUERADE_MARK,
    Backend,
    Balanced,
    Site,
    Step,
    digest,
    text,
)

SETTINGS = {"net.ipv4.conf.all.route_localnet": 1}
"""For NodePorts at 127.0.0.1, which kube-proxy offers in this mode unless told otherwise."""

LARGE = 1000
"""With more endpoints than these, kube-proxy leaves comments out of the chains of Services."""

_NAME = 16  # letters of a hash in a chain's name

_FILTER = (
    "KUBE-PROXY-CANARY",
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
    "KUBE-FIREWALL",
)
_NAT = (
    "KUBE-PROXY-CANARY",
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
)

_NEW = "-m conntrack --ctstate NEW"


def _jump(chain: str, to: str, words: str, match: str = "") -> str:
    comment = f' -m comment --comment "{words}"' if words else ""
    return f"-A {chain}{match and ' ' + match}{comment} -j {to}"


FILTER_JUMPS = (
    *(
        _jump(chain, "KUBE-PROXY-FIREWALL", "kubernetes load balancer firewall", _NEW)
        for chain in ("INPUT", "FORWARD", "OUTPUT")
    ),
    _jump("INPUT", "KUBE-NODEPORTS", "kubernetes health check service ports"),
    _jump("FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    _jump("FORWARD", "KUBE-SERVICES", "kubernetes service portals", _NEW),
    _jump("OUTPUT", "KUBE-SERVICES", "kubernetes service portals", _NEW),
    *(
        _jump(
            chain, "KUBE-EXTERNAL-SERVICES", "kubernetes externally-visible service portals", _NEW
        )
        for chain in ("INPUT", "FORWARD")
    ),
    *(_jump(chain, "KUBE-FIREWALL", "") for chain in ("INPUT", "OUTPUT")),
)
"""Chain by chain in the order in which a packet meets them."""

NAT_JUMPS = (
    _jump("PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    _jump("OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    _jump("POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
)

_FORWARD = (
    f'-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark '
    f"--mark {MASQUERADE_MARK}/{MASQUERADE_MARK} -j ACCEPT",
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack '
    "--ctstate RELATED,ESTABLISHED -j ACCEPT",
)
_LOCALNET = (
    '-A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 '
    "! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
)

MASQUERADING = (
    f"-A KUBE-POSTROUTING -m mark ! --mark {MASQUERADE_MARK}/{MASQUERADE_MARK} -j RETURN",
    f"-A KUBE-POSTROUTING -j MARK --xor-mark {MASQUERADE_MARK}",
    '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" '
    "-j MASQUERADE --random-fully",
    f"-A KUBE-MARK-MASQ -j MARK --or-mark {MASQUERADE_MARK}",
)
"""What is marked is masqueraded on its way out, and the mark is taken off again."""


def restore(flavour: str, lines: Iterable[str]) -> Step:
    """Give the run of a flavour's (``legacy``, ``nft``) iptables-restore that leaves others be."""
    words = (f"iptables-{flavour}-restore", "-w", "5", "--noflush", "--counters")
    return Step(words, text(lines))


def first(flavour: str, services: Sequence[Balanced], site: Site) -> list[Step]:
    """Give the run that writes everything, where nothing is yet."""
    lines = ["*mangle", ":KUBE-PROXY-CANARY - [0:0]", "COMMIT"]
    lines += _filter(FILTER_JUMPS, site)
    lines += _nat(services, services, site, NAT_JUMPS)
    return [restore(flavour, lines)]


def change(
    flavour: str, services: Sequence[Balanced], before: Balanced, after: Balanced, site: Site
) -> list[Step]:
    """Give the run that brings one of the Services from ``before`` to ``after``.

    ``services`` are all as they are to be.
    """
    gone = [each for each in before.endpoints if each not in after.endpoints]
    stale = [endpoint_chain(after, each) for each in gone]
    return [restore(flavour, [*_filter((), site), *_nat(services, [after], site, (), stale)])]


def service_chain(service: Balanced, kind: str = "SVC") -> str:
    """Name the chain that spreads, or (``EXT``) the one for traffic from outside."""
    return f"KUBE-{kind}-{digest(service.name + service.protocol, _NAME)}"


def endpoint_chain(service: Balanced, backend: Backend) -> str:
    """Name the chain that translates to an endpoint."""
    return f"KUBE-SEP-{digest(f'{service.name}{service.protocol}{backend}', _NAME)}"


def _filter(jumps: Iterable[str], site: Site) -> Iterator[str]:
    yield "*filter"
    yield from (f":{chain} - [0:0]" for chain in _FILTER)
    yield from jumps
    counting = f" {_counting(counters.INVALID)}" if site.counted else ""
    yield f"-A KUBE-FORWARD -m conntrack --ctstate INVALID{counting} -j DROP"
    yield from _FORWARD
    yield _LOCALNET
    yield "COMMIT"


def _nat(
    services: Sequence[Balanced],
    written: Sequence[Balanced],
    site: Site,
    jumps: Iterable[str],
    stale: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the table: frontends of all, chains of those ``written``, without those ``stale``."""
    large = sum(len(service.backends) for service in services) > LARGE
    yield "*nat"
    yield from (f":{chain} - [0:0]" for chain in (*_NAT, *stale))
    for service in written:
        yield f":{service_chain(service)} - [0:0]"
        if service.node_port:
            yield f":{service_chain(service, 'EXT')} - [0:0]"
        yield from (f":{endpoint_chain(service, each)} - [0:0]" for each in service.endpoints)
    yield from jumps
    yield from MASQUERADING
    yield from map(_cluster_ip, services)
    yield (
        '-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be '
        'the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS'
    )
    for service in services:
        if service.node_port:
            yield from _node_port(service, site)
    for service in written:
        yield from _chains(service, site, large)
    yield from (f"-X {chain}" for chain in stale)
    yield "COMMIT"


def _cluster_ip(service: Balanced) -> str:
    return (
        f'-A KUBE-SERVICES -m comment --comment "{service.name} cluster IP" {_to(service)} '
        f"-j {service_chain(service)}"
    )


def _node_port(service: Balanced, site: Site) -> Iterator[str]:
    protocol, port = service.protocol, service.node_port
    words = f"-A KUBE-NODEPORTS -m comment --comment {service.name} -m {protocol} -p {protocol}"
    to = f"-j {service_chain(service, 'EXT')}"
    if site.counted:
        yield f"{words} -d 127.0.0.0/8 --dport {port} {_counting(counters.LOCALHOST)} {to}"
    yield f"{words} --dport {port} {to}"


def _counting(counter: str) -> str:
    return f"-m nfacct --nfacct-name {counter}"


def _to(service: Balanced) -> str:
    protocol = service.protocol
    return f"-m {protocol} -p {protocol} -d {service.address} --dport {service.port}"


def _chains(service: Balanced, site: Site, large: bool) -> Iterator[str]:
    """Yield the rules of a Service's own chains."""
    spread, outside = service_chain(service), service_chain(service, "EXT")
    if service.node_port:
        yield (
            f'-A {outside} -m comment --comment "masquerade traffic for {service.name} external '
            'destinations" -j KUBE-MARK-MASQ'
        )
        yield f"-A {outside} -j {spread}"
    yield (
        f'-A {spread} -m comment --comment "{service.name} cluster IP" {_to(service)} '
        f"! -s {site.pods} -j KUBE-MARK-MASQ"
    )
    left = len(service.backends)
    for backend in service.endpoints:
        to = endpoint_chain(service, backend)
        words = "" if large else f' -m comment --comment "{service.name} -> {backend}"'
        odds = f" -m statistic --mode random --probability {1 / left:.10f}" if left > 1 else ""
        yield f"-A {spread}{words}{odds} -j {to}"
        left -= 1
    words = "" if large else f" -m comment --comment {service.name}"
    for backend in service.endpoints:
        to = endpoint_chain(service, backend)
        yield f"-A {to}{words} -s {backend.address} -j KUBE-MARK-MASQ"
        yield (
            f"-A {to}{words} -m {service.protocol} -p {service.protocol} -j DNAT "
            f"--to-destination {backend}"
        )
