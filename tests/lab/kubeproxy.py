"""Rules with kube-proxy's layout, in each of its modes, and rules of other programs beside them.

They follow the description of its chains: for one TCP Service with one endpoint, in one or
both families, with masquerading, NodePorts' chain, forwarding and canaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from bpfsvc.devtools.lab.namespace import Namespace

Mode = Literal["iptables-legacy", "iptables-nft", "nftables"]
MODES: tuple[Mode, ...] = get_args(Mode)

Frontends = Mapping[str, str]
"""Cluster IP -> address of the endpoint, one pair per family. Ports are 80 and 8080."""

_SERVICE, _ENDPOINT = "KUBE-SVC-WEBAAAAAAAAAAAAA", "KUBE-SEP-WEBAAAAAAAAAAAAA"

_IPTABLES = """\
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -m comment --comment "load balancer" -j KUBE-PROXY-FIREWALL
-I INPUT -m conntrack --ctstate NEW -m comment --comment "visible" -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "service portals" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
:{service} - [0:0]
:{endpoint} - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d {frontend} -p tcp -m tcp --dport 80 -j {service}
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A {service} -m comment --comment "default/web -> {backend}" -j {endpoint}
-A {endpoint} -s {backend} -j KUBE-MARK-MASQ
-A {endpoint} -p tcp -m tcp -j DNAT --to-destination {target}
COMMIT
"""

_NFTABLES = """\
table {family} kube-proxy {{
	map service-ips {{
		type {type} . inet_proto . inet_service : verdict
	}}
	chain service-web {{
		numgen random mod 1 vmap {{ 0 : goto endpoint-web }}
	}}
	chain endpoint-web {{
		meta l4proto tcp dnat to {target}
	}}
	chain services {{
		{family} daddr . meta l4proto . th dport vmap @service-ips
	}}
	chain nat-prerouting {{
		type nat hook prerouting priority -100; policy accept;
		jump services
	}}
	chain nat-output {{
		type nat hook output priority -100; policy accept;
		jump services
	}}
	chain nat-postrouting {{
		type nat hook postrouting priority 100; policy accept;
		meta mark and 0x4000 == 0x4000 masquerade
	}}
}}
add element {family} kube-proxy service-ips {{ {frontend} . tcp . 80 : goto service-web }}
"""

_OTHERS = """\
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:GUARD - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment "ssh, not -j KUBE-SERVICES" -j ACCEPT
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j GUARD
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A GUARD -m mark --mark 0x1/0x1 -j REJECT
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:GUARD - [0:0]
-A PREROUTING -j GUARD
-A GUARD -m mark --mark 0x1/0x1 -j RETURN
COMMIT
"""
"""Chains of a kubelet and of another program. None of these rules uses conntrack."""

_OTHERS_NFTABLES = """\
table {family} guard {{
	chain forward {{
		type filter hook forward priority 10; policy accept;
		meta mark 1 drop
	}}
}}
"""


def write_others(node: Namespace) -> None:
    """Write rules of other programs into all tables that kube-proxy may use."""
    for tool in ("iptables", "ip6tables"):
        for flavour in ("legacy", "nft"):
            node.run([f"{tool}-{flavour}-restore", "--noflush"], input=_OTHERS)
    for family in ("ip", "ip6"):
        node.run(["nft", "-f", "-"], input=_OTHERS_NFTABLES.format(family=family))


def write(node: Namespace, mode: Mode, frontends: Frontends) -> None:
    """Write kube-proxy's rules of a mode."""
    for frontend, backend in frontends.items():
        v6 = ":" in frontend
        target = f"[{backend}]:8080" if v6 else f"{backend}:8080"
        if mode == "nftables":
            text = _NFTABLES.format(
                family="ip6" if v6 else "ip",
                type="ipv6_addr" if v6 else "ipv4_addr",
                frontend=frontend,
                target=target,
            )
            node.run(["nft", "-f", "-"], input=text)
            continue
        text = _IPTABLES.format(
            service=_SERVICE, endpoint=_ENDPOINT, frontend=frontend, backend=backend, target=target
        )
        tool = mode.replace("iptables", "ip6tables") if v6 else mode
        node.run([f"{tool}-restore", "--noflush"], input=text)


def rules(node: Namespace) -> dict[str, list[str]]:
    """Return all rules of a node as their tools save them, without counters and comments."""
    seen = {}
    for tool in ("iptables", "ip6tables"):
        for flavour in ("legacy", "nft"):
            text = node.run([f"{tool}-{flavour}-save"]).stdout
            seen[f"{tool}-{flavour}"] = [
                line.partition(" [")[0] if line.startswith(":") else line
                for line in text.splitlines()
                if not line.startswith("#")
            ]
    # The tables of iptables in nftables are listed above, without the chains that it adds.
    listed = node.run(["nft", "list", "tables"]).stdout.splitlines()
    own = [line for line in listed if line.split()[2] not in ("mangle", "filter", "nat")]
    seen["nftables"] = [
        line
        for each in own
        for line in node.run(["nft", "-s", "list", *each.split()]).stdout.splitlines()
    ]
    return seen
