"""The network between the machines: a switch, and a cable to each. Nothing leads out."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from itertools import chain, count

from bpfsvc.base import syscalls
from bpfsvc.devtools.lab import links, sandbox
from bpfsvc.devtools.lab.netns import NetworkNamespace
from tests.cluster.addresses import (
    API,
    BALANCER_CIDRS,
    CLIENTS,
    LAN_LENGTHS,
    NODES,
    OUTSIDE,
)
from tests.cluster.settings import PREFIX

SWITCH = "switch"
HOSTS = (API, OUTSIDE, *NODES)
NAMES = (SWITCH, *(host.name for host in HOSTS))

_MAIN = 254  # the table of all routes that somebody added
_UNICAST = 1
_FORWARD = (
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.default.forwarding",
)


def build(prefix: str) -> None:
    """Make all namespaces and the cables between them."""
    switch = NetworkNamespace(SWITCH, prefix=prefix, make=True)
    switch.sysctl("net.ipv6.conf.default.disable_ipv6", 1)
    bridge = links.bridge(switch, "br0")
    for host in HOSTS:
        namespace = NetworkNamespace(host.name, prefix=prefix, make=True)
        port, uplink = links.cable(switch, host.name, namespace, "eth0")
        port.set(master=bridge.index)
        for address in host.addresses:
            links.add_address(uplink, address, LAN_LENGTHS[address.version])
        if host in NODES:
            _node(namespace)
        elif host is API:
            _clients(namespace)
        namespace.release()
    switch.release()


def _node(node: NetworkNamespace) -> None:
    for key in _FORWARD:
        node.sysctl(key, 1)
    node.sysctl("net.ipv4.tcp_tw_reuse", 2)  # the kernel's default
    uplink = links.find(node, "eth0")
    for address in API.addresses:
        links.add_route(node, links.default_route(address.version), uplink, address)


def _clients(api: NetworkNamespace) -> None:
    """Prepare the namespace in which the e2e tests' clients and the balancer run."""
    # By ports, too, or one client would only ever meet one node behind a balancer's address.
    api.sysctl("net.ipv4.fib_multipath_hash_policy", 1)
    lo, uplink = links.find(api, "lo"), links.find(api, "eth0")
    for outside in OUTSIDE.addresses:
        links.add_address(lo, CLIENTS[outside.version])
        # What no Service has (any more) is silent, as tests expect: "outside" drops it.
        links.add_route(api, BALANCER_CIDRS[outside.version], uplink, outside)


def route_pods(prefix: str, pod_cidrs: dict[str, list[str]]) -> None:
    """Route the pods' addresses of each node through it, on all other machines."""
    vias = {node.name: {address.version: address for address in node.addresses} for node in NODES}
    for host in HOSTS:
        namespace = NetworkNamespace(host.name, prefix=prefix)
        uplink = links.find(namespace, "eth0")
        for node, cidrs in pod_cidrs.items():
            for cidr in map(ip_network, cidrs if node != host.name else ()):
                links.add_route(namespace, cidr, uplink, vias[node][cidr.version])
        namespace.release()


def remove(prefix: str) -> None:
    """Remove all namespaces that exist; one that was made in part, too."""
    for name in NAMES:
        path = sandbox.NETNS_ROOT / (prefix + name)
        with suppress(OSError):
            syscalls.unmount(str(path))
        path.unlink(missing_ok=True)


def exists(name: str) -> bool:
    """True if there is a namespace of that full name."""
    return (sandbox.NETNS_ROOT / name).exists()


def unused_prefix() -> str:
    """Return the first of ``bpfsvc-``, ``bpfsvc2-``, ... that no namespace of a cluster has."""
    numbered = (f"{PREFIX.removesuffix('-')}{number}-" for number in count(2))
    prefixes = chain([PREFIX], numbered)
    return next(prefix for prefix in prefixes if not any(exists(prefix + name) for name in NAMES))


def default_gateways(prefix: str, name: str) -> list[str]:
    """Return the gateways of a machine's default routes, or the devices of those without one."""
    namespace = NetworkNamespace(name, prefix=prefix)
    try:
        return [
            str(route.get("gateway") or route.get("oif"))
            for route in namespace.netlink.route("dump", table=_MAIN)
            if route["dst_len"] == 0 and route["type"] == _UNICAST
        ]
    finally:
        namespace.release()
