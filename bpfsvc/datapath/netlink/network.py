"""Read the interfaces, their addresses and the default routes of this network namespace."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bpfsvc.base.address import family as family_of
from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink import registration
from bpfsvc.datapath.netlink.devices import LOOPBACK, Device, DeviceAddress, Interfaces
from bpfsvc.datapath.netlink.rtnetlink import (
    GET,
    NetlinkError,
    Rtnetlink,
    ifaddrmsg,
    link_request,
    rtmsg,
    rtnetlink,
    rtnl,
)

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8

_NETKIT_POLICY, _NETKIT_DROP = 3, 2  # IFLA_NETKIT_POLICY, NETKIT_DROP
_ATTRIBUTE = struct.Struct("=HH")
"""``struct nlattr``: the length, and the type."""

_V4_UNSELECTABLE = 0x01  # IFA_F_SECONDARY
_V6_TEMPORARY, _V6_OPTIMISTIC, _V6_DADFAILED, _V6_DEPRECATED, _V6_TENTATIVE = 1, 4, 8, 0x20, 0x40
_V6_UNSELECTABLE = _V6_TEMPORARY | _V6_DADFAILED | _V6_DEPRECATED | _V6_TENTATIVE

_SCOPE_LINK = 253

_CONFIGURATION = "/proc/sys/net/ipv6/conf"
_PREFERS_TEMPORARY = 2
"""The least value of the sysctl use_tempaddr that means so."""

_FAR_V4, _FAR_V6 = "192.0.2.1", "2001:db8::1"
"""Documentation addresses: no network has a route to them other than the default route."""

_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL}
"""None at all, and the three kinds of route that refuse: unreachable, prohibit, blackhole."""


def read_network() -> Interfaces:
    """Return the interfaces of the calling thread's network namespace."""
    with rtnetlink() as netlink:
        return NetworkReader(netlink).read()


class NetworkReader:
    """Reads the interfaces of a namespace: all of them, later those that changed.

    With 500 interfaces the former takes 200 ms, nearly all of it in pyroute2's decoder; one
    interface with its addresses and both default routes takes 1 ms.
    """

    def __init__(self, netlink: Rtnetlink, known: Iterable[Device] = ()) -> None:
        self._netlink = netlink
        self._devices = {device.index: device for device in known}

    def read(self) -> Interfaces:
        """Return everything, each list consistent in itself.

        Raises ``DumpInterrupted`` if the interfaces keep changing.
        """
        addresses: dict[int, list[Any]] = {}
        for message in self._netlink.list(ifaddrmsg(), rtnl.RTM_GETADDR):
            addresses.setdefault(message["index"], []).append(message)
        links = self._netlink.list(link_request(), rtnl.RTM_GETLINK)
        self._devices = {
            link["index"]: _device(link, addresses.get(link["index"], ())) for link in links
        }
        return self._interfaces()

    def read_changed(self, indexes: Iterable[int]) -> Interfaces:
        """Return everything, with only these interfaces and the default routes read again."""
        for index in indexes:
            try:
                self._devices[index] = self._read_device(index)
            except NetlinkError as refusal:
                if refusal.code != errno.ENODEV:
                    raise
                self._devices.pop(index, None)
        return self._interfaces()

    def _read_device(self, index: int) -> Device:
        request = ifaddrmsg()
        request["index"] = index
        addresses = self._netlink.list(request, rtnl.RTM_GETADDR)
        (link,) = self._netlink.request(link_request(index), rtnl.RTM_GETLINK, GET)
        return _device(link, addresses)

    def _interfaces(self) -> Interfaces:
        return Interfaces(
            devices=tuple(self._devices[index] for index in sorted(self._devices)),
            default_v4=self._route_interface(_FAR_V4),
            default_v6=self._route_interface(_FAR_V6),
            order_v4=registration.order_v4(),
            order_v6=registration.order_v6(),
        )

    def _route_interface(self, destination: str) -> int:
        """Return the index of the interface by which a destination is reached, or 0."""
        request = rtmsg()
        is_v6 = ":" in destination
        request["family"] = socket.AF_INET6 if is_v6 else socket.AF_INET
        request["dst_len"] = 128 if is_v6 else 32
        request["attrs"] = [("RTA_DST", destination)]
        try:
            routes = self._netlink.request(request, rtnl.RTM_GETROUTE, GET)
        except NetlinkError as refusal:
            if refusal.code in _NO_ROUTE:
                return 0
            raise
        return next((route.get_attr("RTA_OIF") or 0 for route in routes), 0)


def _device(link: Any, messages: Iterable[Any]) -> Device:
    kind = link.get(("linkinfo", "kind")) or ""
    name = link.get_attr("IFLA_IFNAME")
    addresses = tuple(map(_address, messages))
    return Device(
        index=link["index"],
        name=name,
        kind=LOOPBACK if link["flags"] & _IFF_LOOPBACK else kind,
        master=link.get_attr("IFLA_MASTER") or 0,
        up=bool(link["flags"] & _IFF_UP),
        hardware=link["ifi_type"],
        addresses=addresses,
        mac=bytes.fromhex((link.get_attr("IFLA_ADDRESS") or "").replace(":", "")),
        peer_elsewhere=link.get_attr("IFLA_LINK_NETNSID") is not None,
        queue=link.get_attr("IFLA_QDISC") or "",
        prefers_temporary=any(map(_is_routed_v6, addresses)) and _prefers_temporary(name),
        drops=kind == "netkit" and _drops(link.get(("linkinfo", "data"))),
    )


def _drops(data: str | None) -> bool:
    """True if netkit's policy drops what leaves by it. ``data``: as pyroute2 shows unknown kinds.

    Programs at netkit's hook come before the policy, but where there are any, the fast path does
    not send by this interface.
    """
    raw, offset = bytes.fromhex((data or "").replace(":", "")), 0
    while offset + _ATTRIBUTE.size < len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, offset)
        if kind == _NETKIT_POLICY:
            return raw[offset + _ATTRIBUTE.size] == _NETKIT_DROP
        offset += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return False


def _address(message: Any) -> DeviceAddress:
    """Return an address; where it has a peer, IFA_ADDRESS is the peer and IFA_LOCAL its own."""
    v4 = message["family"] == socket.AF_INET
    flags: int = message.get_attr("IFA_FLAGS") or message["flags"]
    of_subnet = message.get_attr("IFA_ADDRESS")
    own = message.get_attr("IFA_LOCAL") or of_subnet
    optimistic = bool(flags & _V6_OPTIMISTIC)
    return DeviceAddress(
        address=pack(own),
        prefix=message["prefixlen"],
        scope=message["scope"],
        selectable=not flags & (_V4_UNSELECTABLE if v4 else _V6_UNSELECTABLE),
        peer=pack(of_subnet) if v4 and of_subnet and of_subnet != own else b"",
        deprecated=not v4 and (bool(flags & _V6_DEPRECATED) or optimistic),
        temporary=not v4 and bool(flags & _V6_TEMPORARY),
        tentative=not v4 and bool(flags & _V6_TENTATIVE) and not optimistic,
    )


def _is_routed_v6(address: DeviceAddress) -> bool:
    return address.scope < _SCOPE_LINK and family_of(address.address) == 6


def _prefers_temporary(name: str) -> bool:
    """True if the kernel prefers temporary addresses of an interface; False if that is gone."""
    try:
        return int(Path(_CONFIGURATION, name, "use_tempaddr").read_text()) >= _PREFERS_TEMPORARY
    except OSError:
        return False
