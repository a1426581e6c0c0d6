"""Interfaces, addresses, routes and neighbours of a lab.

Only this module uses rtnetlink's names. Neighbours are permanent where a CNI knows them, too, so
that captures show the packets of a test and no neighbour discovery.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, AF_NETLINK, SOCK_DGRAM, SOCK_RAW

from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import wait

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NODAD = 0x02
_PERMANENT = 0x80
_LOCAL = 2  # RTN_LOCAL
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tx": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
"""ETHTOOL_STXCSUM, STSO, SGSO and SGRO (``linux/ethtool.h``)."""
_PACKET_SIZES = (41, 58, 63, 64)
"""IFLA_GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE and GRO_IPV4_MAX_SIZE."""
_RTM_NEWLINK, _REQUEST_ACK = 16, 5
_ANY_SCOPE = 255  # RT_SCOPE_NOWHERE, to the kernel a wildcard in a deletion


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable: its namespace, name, index and hardware address."""

    namespace: NetworkNamespace
    name: str
    index: int
    mac: str

    def set(self, **attributes: object) -> None:
        """Change attributes of the link (``mtu=``, ``state=``, ``master=`` ...)."""
        self.namespace.netlink.link("set", index=self.index, **attributes)

    def await_carrier(self) -> None:
        """Wait until the link sends: until carrier is noticed, the kernel drops all packets."""

        def sends() -> bool:
            (link,) = self.namespace.netlink.link("get", index=self.index)
            return bool(link.get("operstate") == "UP")

        wait(sends, f"{self.name} has carrier")

    def allow_packets(self, size: int) -> None:
        """Let segmentation offload make packets of up to ``size`` bytes (BIG TCP), also by GRO."""
        attributes = b"".join(struct.pack("=HHI", 8, kind, size) for kind in _PACKET_SIZES)
        body = struct.pack("=BxHiII", 0, 0, self.index, 0, 0) + attributes
        request = struct.pack("=IHHII", 16 + len(body), _RTM_NEWLINK, _REQUEST_ACK, 1, 0) + body
        with self.namespace.entered(), socket.socket(AF_NETLINK, SOCK_RAW) as asked:
            asked.send(request)
            (error,) = struct.unpack_from("=16xi", asked.recv(1 << 12))
        if error:
            raise OSError(-error, os.strerror(-error), self.name)

    def offload(self, feature: str, on: bool) -> None:
        """Turn on or off one of ``tx`` (checksums), ``tso``, ``gso`` and ``gro``.

        Between namespaces packets go without a checksum, which XDP sends on as it finds them, and a
        cable takes frames from XDP only where the other end uses GRO. So a cable with
        XDP at one end needs ``tx`` off and ``gro`` on at the other end.
        """
        value = ctypes.create_string_buffer(struct.pack("=II", _OFFLOADS[feature], on), 8)
        request = struct.pack("=16sQ16x", self.name.encode(), ctypes.addressof(value))
        with self.namespace.entered(), socket.socket(AF_INET, SOCK_DGRAM) as asked:
            try:
                fcntl.ioctl(asked, _SIOCETHTOOL, request)
            except OSError as error:
                # A feature that is not available is off: segmentation, where the other end runs
                # XDP.
                if on or error.errno != errno.EOPNOTSUPP:
                    raise


def cable(
    left: NetworkNamespace,
    left_name: str,
    right: NetworkNamespace,
    right_name: str,
    mtu: int = 1500,
) -> tuple[End, End]:
    """Make a veth between two namespaces; both ends are up."""
    left.netlink.link(
        "add",
        ifname=left_name,
        kind="veth",
        mtu=mtu,
        peer={"ifname": right_name, "net_ns_fd": right.fd, "mtu": mtu},
    )
    ends = (find(left, left_name), find(right, right_name))
    for end in ends:
        end.set(state="up")
    return ends


def bridge(namespace: NetworkNamespace, name: str, mtu: int = 1500) -> End:
    """Make a bridge that forwards at once."""
    namespace.netlink.link(
        "add", ifname=name, kind="bridge", br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0
    )
    end = find(namespace, name)
    # By default a bridge takes the lowest address of its ports, and changes it with them.
    end.set(state="up", mtu=mtu, address=end.mac)
    return end


def vxlan(
    namespace: NetworkNamespace, name: str, *, local: Address, over: End, mac: str, mtu: int
) -> End:
    """Make a VXLAN device without learning, as Flannel does (network 1, UDP port 8472)."""
    key = "vxlan_local" if local.version == 4 else "vxlan_local6"
    namespace.netlink.link(
        "add",
        ifname=name,
        kind="vxlan",
        address=mac,
        mtu=mtu,
        vxlan_id=1,
        vxlan_link=over.index,
        vxlan_port=8472,
        vxlan_learning=0,
        **{key: str(local)},
    )
    end = find(namespace, name)
    end.set(state="up")
    return end


def tunnel_peer(device: End, mac: str, at: Address) -> None:
    """Add the underlay address where a VXLAN device reaches a hardware address."""
    device.namespace.netlink.fdb("add", ifindex=device.index, lladdr=mac, dst=str(at))


def add_address(end: End, address: Address, length: int | None = None) -> None:
    """Add an address to an interface, usable at once; ``length`` defaults to a host's."""
    flags = {"flags": _NODAD} if address.version == 6 else {}
    end.namespace.netlink.addr(
        "add",
        index=end.index,
        address=str(address),
        prefixlen=length or address.max_prefixlen,
        **flags,
    )


def await_address(end: End, address: Address) -> None:
    """Wait until an interface receives packets to its address.

    IPv6 adds the local route of an address from a work queue, when the link has carrier: until then
    the interface asks for its neighbours with that address and ignores their answers, and packets
    sent meanwhile wait for the second question, one second later.
    """
    family = AF_INET if address.version == 4 else AF_INET6

    def received() -> bool:
        (route,) = end.namespace.netlink.route("get", dst=str(address), family=family)
        return bool(route["type"] == _LOCAL)

    wait(received, f"{address} is an address of {end.namespace.name}")


def add_route(
    namespace: NetworkNamespace, to: Network, end: End, via: Address | None = None
) -> None:
    """Add a route through an interface; a gateway with any address counts as on the link."""
    route: dict[str, object] = {"dst": str(to), "oif": end.index}
    route["family"] = AF_INET if to.version == 4 else AF_INET6
    if via is not None:
        route |= {"gateway": str(via), "flags": ["onlink"]}
    elif to.version == 4:
        route["scope"] = "link"
    namespace.netlink.route("replace", **route)


def delete_route(namespace: NetworkNamespace, to: Network) -> None:
    """Delete the route to exactly ``to``."""
    if to.version == 4:
        namespace.netlink.route("del", dst=str(to), family=AF_INET, scope=_ANY_SCOPE)
    else:
        namespace.netlink.route("del", dst=str(to), family=AF_INET6)


def add_neighbour(end: End, address: Address, mac: str) -> None:
    """Add a permanent neighbour entry: the hardware address of an address."""
    family = AF_INET if address.version == 4 else AF_INET6
    end.namespace.netlink.neigh(
        "replace", ifindex=end.index, dst=str(address), lladdr=mac, state=_PERMANENT, family=family
    )


def host_route(address: Address) -> Network:
    """Return the /32 or /128 of an address."""
    return ipaddress.ip_network(address)


def default_route(version: int) -> Network:
    """Return 0.0.0.0/0 or ::/0."""
    return ipaddress.ip_network("0.0.0.0/0" if version == 4 else "::/0")


def find(namespace: NetworkNamespace, name: str) -> End:
    """Return the interface with a name."""
    with namespace.entered():
        index = namespace.index(name)
    (link,) = namespace.netlink.link("get", index=index)
    return End(namespace, name, index, link.get("address"))
