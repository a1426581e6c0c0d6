"""kube-proxy's ipvs layout: virtual services, what brings packets to them, and what masquerades.

The cluster IPs are addresses of a device that is never up, so that packets to them are delivered
to this node, where ipvs takes them. iptables rules know Services by ipset alone, so that there are
few however many Services there are. A change touches the real servers of the Service; then the
rules are written anew, as kube-proxy does each time. (ipvs itself it changes by netlink, without a
tool.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from bpfsvc.bench.rivals.balanced import (
    MASQUERADE_MARK,
    Backend,
    Balanced,
    Protocol,
    Site,
    Step,
    text,
)
from bpfsvc.bench.rivals.iptables import MASQUERADING, NAT_JUMPS, restore

SETTINGS = {
    "net.ipv4.vs.conntrack": 1,
    "net.ipv4.vs.expire_nodest_conn": 1,
    "net.ipv4.vs.expire_quiescent_template": 1,
}
"""conntrack is what makes masquerading possible; the others end what leads to nobody."""

_DEVICE = "kube-ipvs0"
_OPTIONS: dict[Protocol, str] = {"tcp": "-t", "udp": "-u"}
_MASQUERADED = f"--mark {MASQUERADE_MARK}/{MASQUERADE_MARK}"

_HASH = "family inet hashsize 1024 maxelem 65536"
_PORTS = "bitmap:port range 0-65535"
_SETS = {
    "KUBE-CLUSTER-IP": f"hash:ip,port {_HASH}",
    "KUBE-LOOP-BACK": f"hash:ip,port,ip {_HASH}",
    "KUBE-IPVS-IPS": f"hash:ip {_HASH}",
    "KUBE-NODE-PORT-TCP": _PORTS,
    "KUBE-NODE-PORT-UDP": _PORTS,
    # Empty here, but packets are looked up in them.
    "KUBE-LOAD-BALANCER": f"hash:ip,port {_HASH}",
    "KUBE-EXTERNAL-IP": f"hash:ip,port {_HASH}",
    "KUBE-EXTERNAL-IP-LOCAL": f"hash:ip,port {_HASH}",
    "KUBE-HEALTH-CHECK-NODE-PORT": _PORTS,
}

_FILTER = (
    "KUBE-FORWARD",
    "KUBE-NODE-PORT",
    "KUBE-PROXY-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
)
_NAT = ("KUBE-SERVICES", "KUBE-NODE-PORT", "KUBE-POSTROUTING", "KUBE-MARK-MASQ")

_FILTER_JUMPS = (
    '-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER',
    '-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
    '-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT',
    '-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
    '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
    '-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER',
)


def _known(name: str, fields: str = "dst,dst") -> str:
    return f"-m set --match-set {name} {fields}"


_FILTERING = (
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" '
    f"-m mark {_MASQUERADED} -j ACCEPT",
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack '
    "--ctstate RELATED,ESTABLISHED -j ACCEPT",
    '-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" '
    f"{_known('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j ACCEPT",
    f"-A KUBE-IPVS-FILTER {_known('KUBE-LOAD-BALANCER')} -j RETURN",
    f"-A KUBE-IPVS-FILTER {_known('KUBE-CLUSTER-IP')} -j RETURN",
    f"-A KUBE-IPVS-FILTER {_known('KUBE-EXTERNAL-IP')} -j RETURN",
    f"-A KUBE-IPVS-FILTER {_known('KUBE-EXTERNAL-IP-LOCAL')} -j RETURN",
    f"-A KUBE-IPVS-FILTER {_known('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j RETURN",
    f"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {_known('KUBE-IPVS-IPS', 'dst')} -j REJECT",
)


def first(services: Sequence[Balanced], site: Site) -> list[Step]:
    """Give the runs that write everything, where nothing is yet.

    The first is the one that fails where the kernel has no ipvs.
    """
    device = [f"link add {_DEVICE} type dummy"]
    device += (f"address add {each.address}/32 dev {_DEVICE}" for each in services)
    virtual = [line for service in services for line in _virtual(service, site)]
    sets = [f"create {name} {kind}" for name, kind in _SETS.items()]
    members = [line for service in services for line in _members(service, site)]
    canary = ("*mangle", ":KUBE-PROXY-CANARY - [0:0]", "COMMIT")
    return [
        Step(("ipvsadm", "-R"), text(virtual)),
        Step(("ipset", "restore", "-exist"), text((*sets, *members))),
        restore("legacy", (*canary, *_filter(_FILTER_JUMPS), *_nat(services, site, NAT_JUMPS))),
        Step(("ip", "-batch", "-"), text(dict.fromkeys(device))),
    ]


def change(
    services: Iterable[Balanced],
    before: Balanced,
    after: Balanced,
    draining: Collection[Backend],
    site: Site,
) -> list[Step]:
    """Give the runs that bring one of the Services from ``before`` to ``after``.

    ``services`` are all as they are to be. Real servers that are no more get weight 0 as long as
    connections may need them: over TCP. ``draining`` are those that got it by earlier changes.
    """
    fresh = [each for each in after.endpoints if each not in before.endpoints]
    gone = [each for each in before.endpoints if each not in after.endpoints]
    lines = []
    for where in _frontends(after, site):
        for each in fresh:
            lines.append(f"{'-e' if each in draining else '-a'} {where} -r {each} -m -w 1")
        for each in gone:
            end = f"-e {where} -r {each} -m -w 0" if drains(after) else f"-d {where} -r {each}"
            lines.append(end)
    steps = [Step(("ipvsadm", "-R"), text(lines))]
    # Entries of those gone stay: another Service may have the same endpoint.
    if hairpins := [f"add {line}" for line in _hairpins(after, fresh, site)]:
        steps.append(Step(("ipset", "restore", "-exist"), text(hairpins)))
    return [*steps, restore("legacy", (*_filter(()), *_nat(services, site, ())))]


def drains(service: Balanced) -> bool:
    """Whether a Service's real servers stay when they are no more, with weight 0."""
    return service.protocol == "tcp"


def _filter(jumps: Iterable[str]) -> Iterator[str]:
    yield "*filter"
    yield from (f":{chain} - [0:0]" for chain in ("KUBE-PROXY-CANARY", *_FILTER))
    yield from jumps
    yield from _FILTERING
    yield "COMMIT"


def _nat(services: Iterable[Balanced], site: Site, jumps: Iterable[str]) -> Iterator[str]:
    """Yield the table. There is no rule for a set that has no members, unless it is met anyhow."""
    filled = {line.split()[1] for service in services for line in _members(service, site)}
    yield "*nat"
    yield from (f":{chain} - [0:0]" for chain in ("KUBE-PROXY-CANARY", *_NAT))
    yield from jumps
    if "KUBE-LOOP-BACK" in filled:
        yield (
            '-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source '
            f'ip for solving hairpin purpose" {_known("KUBE-LOOP-BACK", "dst,dst,src")} '
            "-j MASQUERADE"
        )
    yield from MASQUERADING
    for protocol in _OPTIONS:
        name = f"KUBE-NODE-PORT-{protocol.upper()}"
        if name in filled:
            yield (
                f'-A KUBE-NODE-PORT -p {protocol} -m comment --comment "Kubernetes nodeport '
                f'{protocol.upper()} port for masquerade purpose" {_known(name, "dst")} '
                "-j KUBE-MARK-MASQ"
            )
    yield "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN"
    yield (
        f"-A KUBE-SERVICES ! -s {site.pods} -m comment --comment "
        '"Kubernetes service cluster ip + port for masquerade purpose" '
        f"{_known('KUBE-CLUSTER-IP')} -j KUBE-MARK-MASQ"
    )
    yield "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"
    yield f"-A KUBE-SERVICES {_known('KUBE-CLUSTER-IP')} -j ACCEPT"
    yield "COMMIT"


def _frontends(service: Balanced, site: Site) -> Iterator[str]:
    option = _OPTIONS[service.protocol]
    yield f"{option} {service.address}:{service.port}"
    if service.node_port:
        yield f"{option} {site.address}:{service.node_port}"


def _virtual(service: Balanced, site: Site) -> Iterator[str]:
    for where in _frontends(service, site):
        yield f"-A {where} -s rr"
        yield from (f"-a {where} -r {each} -m -w 1" for each in service.endpoints)


def _members(service: Balanced, site: Site) -> Iterator[str]:
    yield f"add KUBE-IPVS-IPS {service.address}"
    yield f"add KUBE-CLUSTER-IP {service.address},{service.protocol}:{service.port}"
    if service.node_port:
        yield f"add KUBE-NODE-PORT-{service.protocol.upper()} {service.node_port}"
    yield from (f"add {line}" for line in _hairpins(service, service.endpoints, site))


def _hairpins(service: Balanced, endpoints: Iterable[Backend], site: Site) -> Iterator[str]:
    """Yield an entry for each of the endpoints that may be its own client on this node."""
    for each in endpoints:
        if site.holds(each):
            yield f"KUBE-LOOP-BACK {each.address},{service.protocol}:{each.port},{each.address}"
