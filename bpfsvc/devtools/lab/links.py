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
from typing import Literal

from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import wait

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PairKind = Literal["veth", "netkit-l2", "netkit-l3"]
"""How a pod's interface is connected to its node. netkit needs Linux 6.7 and CONFIG_NETKIT."""

_NODAD = 0x02
_PERMANENT = 0x80
_LOCAL = 2  # RTN_LOCAL
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tx": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
"""ETHTOOL_STXCSUM, STSO, SGSO and SGRO (``linux/ethtool.h``)."""
_PACKET_SIZES = (41, 58, 63, 64)
"""IFLA_GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE and GRO_IPV4_MAX_SIZE."""
_RTM_NEWLINK, _REQUEST_ACK, _CREATE_NEW = 16, 5, 0x600
_IFNAME, _MTU, _LINKINFO, _NET_NS_FD = 3, 4, 18, 28  # IFLA_...
_INFO_KIND, _INFO_DATA = 1, 2
_NETKIT_PEER_INFO, _NETKIT_MODE = 1, 5
_MODES = {"netkit-l2": 0, "netkit-l3": 1}
_LINK = struct.Struct("=BxHiII")
"""``struct ifinfomsg``: the family, the type, the index, flags, and which flags change."""
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
        attributes = b"".join(_number(kind, size) for kind in _PACKET_SIZES)
        _request(self.namespace, self.name, self.index, attributes)

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


def pod_cable(
    kind: PairKind,
    node: NetworkNamespace,
    node_name: str,
    pod: NetworkNamespace,
    pod_name: str,
    mtu: int = 1500,
) -> tuple[End, End]:
    """Connect a pod to its node; both ends are up. On the node is netkit's primary device."""
    if kind == "veth":
        return cable(node, node_name, pod, pod_name, mtu)
    # pyroute2 0.9.7 does not know netkit.
    peer = _LINK.pack(0, 0, 0, 0, 0) + _name(pod_name) + _number(_MTU, mtu)
    data = _attribute(_NETKIT_PEER_INFO, peer + _number(_NET_NS_FD, pod.fd))
    data += _number(_NETKIT_MODE, _MODES[kind])
    info = _attribute(_INFO_KIND, b"netkit\0") + _attribute(_INFO_DATA, data)
    attributes = _name(node_name) + _number(_MTU, mtu) + _attribute(_LINKINFO, info)
    _request(node, node_name, 0, attributes, _CREATE_NEW)
    ends = (find(node, node_name), find(pod, pod_name))
    for end in ends:
        end.set(state="up")
    return ends


def has_neighbours(kind: PairKind) -> bool:
    """True if the ends of a pair have hardware addresses, which neighbours have to know."""
    return kind != "netkit-l3"


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _name(value: str) -> bytes:
    return _attribute(_IFNAME, value.encode() + b"\0")


def _request(
    namespace: NetworkNamespace, name: str, index: int, attributes: bytes, flags: int = 0
) -> None:
    """Make an interface or change it; ``name`` is for the ``OSError``."""
    body = _LINK.pack(0, 0, index, 0, 0) + attributes
    header = (16 + len(body), _RTM_NEWLINK, _REQUEST_ACK | flags, 1, 0)
    with namespace.entered(), socket.socket(AF_NETLINK, SOCK_RAW) as asked:
        asked.send(struct.pack("=IHHII", *header) + body)
        (error,) = struct.unpack_from("=16xi", asked.recv(1 << 12))
    if error:
        raise OSError(-error, os.strerror(-error), name)


def bridge(namespace: NetworkNamespace, name: str, mtu: int = 1500) -> End:
    """Make a bridge that forwards at once, with a link layer address that stays."""
    namespace.netlink.link(
        "add",
        ifname=name,
        kind="bridge",
        # Otherwise a bridge takes the lowest address of its ports, and changes it with them. Linux
        # 5.10 forwards to the bridge itself only if its address was given with it, or has changed.
        address=_local_mac(),
        br_stp_state=0,
        br_forward_delay=0,
        br_mcast_snooping=0,
    )
    end = find(namespace, name)
    end.set(state="up", mtu=mtu)
    return end


def _local_mac() -> str:
    """Return a random address that is administered locally."""
    return ":".join(f"{byte:02x}" for byte in (0x02, *os.urandom(5)))


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
