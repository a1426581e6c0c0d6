"""kube-proxy's ipvs mode: virtual servers, the device with their addresses, and sets.

Others use ipvs too (keepalived, for example). kube-proxy's are the virtual servers at the addresses
of its dummy device, and the NodePorts at the node's own addresses. (kube-proxy's own cleanup makes
no difference, and flushes all.)

Unlike netfilter, ipvs drops the packets of a connection when the virtual server is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from bpfsvc.base.ports import NODE_PORTS, PortRange
from bpfsvc.datapath.netlink.devices import Device, Interfaces
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.ipvs import VirtualServer, read_kernel_list
from bpfsvc.migration.netfilter.tools import run

_TABLE = Path("/proc/net/ip_vs")
_CONNECTIONS = Path("/proc/net/ip_vs_conn")


def dummy_device(network: Interfaces) -> Device | None:
    """Return kube-proxy's device, None if there is none."""
    return next((device for device in network.devices if device.name == names.DUMMY_DEVICE), None)


def dummy_addresses(network: Interfaces) -> frozenset[bytes]:
    """Return the addresses of kube-proxy's device."""
    device = dummy_device(network)
    return frozenset(held.address for held in device.addresses) if device else frozenset()


def virtual_servers(network: Interfaces) -> tuple[VirtualServer, ...]:
    """Return the virtual servers that are kube-proxy's."""
    try:
        text = _TABLE.read_text()
    except OSError:
        return ()  # this kernel has no ipvs, or it was never used
    return tuple(kube_proxys(read_kernel_list(text), network, NODE_PORTS))


def kube_proxys(
    servers: Iterable[VirtualServer], network: Interfaces, node_ports: PortRange
) -> Iterator[VirtualServer]:
    """Yield the virtual servers that are kube-proxy's."""
    of_dummy = dummy_addresses(network)
    of_node = {held.address for device in network.devices for held in device.addresses}
    for server in servers:
        address = server.address
        is_node_port = address in of_node and node_ports.first <= server.port <= node_ports.last
        if address in of_dummy or (of_dummy and is_node_port):
            yield server


def established() -> int:
    """Return the number of established connections through ipvs."""
    try:
        text = _CONNECTIONS.read_text()
    except OSError:
        return 0
    return sum(" ESTABLISHED " in line for line in text.splitlines())


def sets(program: str) -> tuple[str, ...]:
    """Return the names of kube-proxy's sets."""
    listed = run([program, "list", "-name"]).split()
    return tuple(name for name in listed if names.is_set(name))
