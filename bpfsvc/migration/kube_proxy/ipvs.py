"""kube-proxy's ipvs mode: virtual services, the device with their addresses, and sets.

Others use ipvs too (keepalived, say). kube-proxy's are the virtual services at the addresses of its
dummy device, and those of NodePorts at the node's own addresses. (kube-proxy's own cleanup does not
tell them apart, and flushes.)

Unlike netfilter, ipvs drops the packets of a connection whose virtual service has gone.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.address import pack
from bpfsvc.base.ports import NODE_PORTS, PortRange
from bpfsvc.datapath.netlink.details import delete_link
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.kube_proxy.commands import run

_TABLE = Path("/proc/net/ip_vs")
_CONNECTIONS = Path("/proc/net/ip_vs_conn")
_OPTIONS = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}


class VirtualService(NamedTuple):
    """A protocol's name as the kernel writes it, an address as text, and a port."""

    protocol: str
    address: str
    port: int

    def __str__(self) -> str:
        """Return the arguments of ipvsadm that delete it."""
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"-D {_OPTIONS[self.protocol]} {where}:{self.port}"


def services(network: Interfaces, node_ports: PortRange = NODE_PORTS) -> tuple[VirtualService, ...]:
    """Return the virtual services that are kube-proxy's."""
    try:
        text = _TABLE.read_text()
    except OSError:
        return ()  # this kernel has no ipvs, or it was never used
    return tuple(kube_proxys(read_services(text), network, node_ports))


def read_services(text: str) -> Iterator[VirtualService]:
    """Yield those of ``/proc/net/ip_vs``; services of a firewall mark have no address."""
    for line in text.splitlines():
        protocol, _, rest = line.partition(" ")
        if protocol in _OPTIONS:
            address, _, port = rest.split()[0].rpartition(":")
            yield VirtualService(protocol, _address(address), int(port, 16))


def _address(text: str) -> str:
    if text.startswith("["):
        return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, text[1:-1]))
    return socket.inet_ntoa(struct.pack(">I", int(text, 16)))


def kube_proxys(
    found: Iterable[VirtualService], network: Interfaces, node_ports: PortRange
) -> Iterator[VirtualService]:
    """Yield those of ``found`` that are kube-proxy's."""
    devices = network.devices
    of_dummy = {
        one.address
        for device in devices
        if device.name == names.DUMMY_DEVICE
        for one in device.addresses
    }
    of_node = {one.address for device in devices for one in device.addresses}
    for each in found:
        address = pack(each.address)
        is_node_port = address in of_node and node_ports.first <= each.port <= node_ports.last
        if address in of_dummy or (of_dummy and is_node_port):
            yield each


def established() -> int:
    """Return the number of established connections through ipvs."""
    try:
        text = _CONNECTIONS.read_text()
    except OSError:
        return 0
    return sum(" ESTABLISHED " in line for line in text.splitlines())


def remove_services(program: str, found: Iterable[VirtualService]) -> None:
    """Delete virtual services, all in one run of ipvsadm."""
    run([program, "--restore"], "".join(f"{each}\n" for each in found))


def remove_device(index: int) -> None:
    """Delete the dummy device; raise ``KernelError`` if the kernel refuses."""
    delete_link(index)


def sets(program: str) -> tuple[str, ...]:
    """Return the names of kube-proxy's sets."""
    listed = run([program, "list", "-name"]).split()
    return tuple(name for name in listed if names.is_set(name))


def remove_sets(program: str, found: Iterable[str]) -> None:
    """Destroy sets; raise ``KernelError`` if a rule of another program still uses one."""
    run([program, "restore"], "".join(f"destroy {each}\n" for each in found))
